"""Archives of images, as `docker save` writes them and as nobody does."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def files_of(data: bytes) -> dict[str, bytes]:
    """Return a whole archive's files. Raises tarfile.ReadError for one that breaks off."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def chunks(data: bytes, size: int = 5000) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@dataclass
class SmallImage:
    """An image of one layer that holds one file."""

    text: bytes = b"hello"
    tags: tuple[str, ...] = ("lab/train:2",)
    command: tuple[str, ...] = ("true",)
    variables: tuple[str, ...] = ()
    system: str = "linux"
    layer: bytes = field(init=False)
    config: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.layer = archive({"hello": self.text})
        self.config = json.dumps(
            {
                "architecture": "amd64",
                "os": self.system,
                "config": {"Cmd": list(self.command), "Env": list(self.variables)},
                "history": [{"created_by": "test"}],
                "rootfs": {"type": "layers", "diff_ids": [digest(self.layer)]},
            }
        ).encode()

    @property
    def id(self) -> str:
        return digest(self.config)

    @property
    def manifest(self) -> dict[str, Any]:
        return {"Config": f"{self.id[7:]}.json", "RepoTags": list(self.tags), "Layers": ["1/layer.tar"]}

    def files(self) -> dict[str, bytes]:
        """Return it as engines before Docker 25 save it."""
        return {
            "1/VERSION": b"1.0",
            "1/json": b"{}",
            "1/layer.tar": self.layer,
            f"{self.id[7:]}.json": self.config,
            "manifest.json": json.dumps([self.manifest]).encode(),
            "repositories": json.dumps({tag.split(":")[0]: {tag.split(":")[1]: "1"} for tag in self.tags}).encode(),
        }

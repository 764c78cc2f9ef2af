"""Modules that Ansible has packed, each with all that it imports: once for all plays of the fork server.

Packing takes 0.2 s of CPU. Ansible keeps packed modules below its temporary directory, which is new for each play.
"""

import base64
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from muster.ansible_gateway.kept_code import name_of, title

_PACKED = "ansiballz_cache"
_SOURCES = "muster_sources"


def give_packed(source: Path, target: Path) -> None:
    """Give one temporary directory the packed modules of another.

    A file is linked when it is whole: Ansible renames it to a name without an ending.
    """
    # What a title stands for comes before it.
    for kind in (_SOURCES, _PACKED):
        # The server may end at any time, and takes its directory with it.
        with suppress(OSError):
            (target / kind).mkdir(exist_ok=True)
            for packed in (source / kind).iterdir():
                if not packed.name.endswith((".lock", "-part")):
                    with suppress(FileExistsError):
                        (target / kind / packed.name).hardlink_to(packed)


def divide_packed(directory: Path, modules: Collection[str]) -> None:
    """Put aside the sources of these modules; each keeps a title of them. Where that is done, nothing changes.

    For each host Ansible reads all of a packed module and writes it into a program. These programs are sent without
    their sources, so it would do that in vain.
    """
    # Imported where Ansible has been configured.
    from ansible.executor.module_common import _CachedModule  # noqa: PLC0415

    with suppress(OSError):
        for packed in (directory / _PACKED).iterdir():
            if _module_of(packed) not in modules:
                continue
            module = _CachedModule.load(packed)
            sources = base64.b64decode(module.zip_data)
            name = name_of(sources)
            if sources != title(name):
                (directory / _SOURCES).mkdir(exist_ok=True)
                _write(directory / _SOURCES / name, sources)
                replace(module, zip_data=base64.b64encode(title(name))).dump(str(packed))


def sources_of(name: str) -> bytes:
    """Return the sources of this name in this play's temporary directory."""
    from ansible import constants  # noqa: PLC0415

    return (Path(constants.DEFAULT_LOCAL_TMP) / _SOURCES / name).read_bytes()


def _module_of(packed: Path) -> str:
    """Return the short name of a packed module, or "" if it is not whole.

    Ansible names it `FULL.NAME-COMPRESSION-EXTENSIONS`.
    """
    return "" if packed.name.endswith((".lock", "-part")) else packed.name.split("-")[0].rpartition(".")[2]


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}-part")
    part.write_bytes(content)
    part.replace(path)

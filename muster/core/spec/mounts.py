"""The session spec's mounts of data folders."""

import posixpath
from typing import Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from muster.core.spec.base import SpecModel, flag
from muster.core.spec.values import invalid

MAX_NAME_BYTES = 255
HOME = "/home/work"
_RESERVED_TARGETS = (
    *("/", "/proc", "/sys", "/dev", "/etc", "/run", "/run/muster", "/run/muster-apps", "/run/fgpu", "/opt/muster"),
    *("/bin", "/sbin", "/lib", "/usr", "/usr/lib", "/usr/lib64", HOME),
)
_RESERVED_TREES = ("/run/muster/", "/run/muster-apps/", "/run/fgpu/", "/opt/muster/")
# Where no agent mounts anything either.
_SYSTEM_TREES = ("/dev/", "/etc/", "/proc/", "/sys/")


class MountSpec(SpecModel):
    """A data folder in every kernel. Short form: `FOLDER[:TARGET][:ro]`."""

    folder: str = Field(description="folder below the data root, such as datasets/mnist")
    target: str = Field(default="", description=f"path in the kernels; {HOME}/<last part of the folder> by default")
    read_only: bool = Field(default=False, description="mount read-only")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        folder, *rest = value.split(":")
        # Without a mode, the folder's share decides.
        mode = {"read_only": rest.pop() == "ro"} if rest and rest[-1] in {"ro", "rw"} else {}
        if len(rest) > 1:
            raise invalid(
                f"{value!r} has too many colons",
                "write the folder, a path in the containers and ro, such as data:/data:ro",
            )
        return {"folder": folder, "target": rest[0] if rest else "", **mode}

    @field_validator("folder")
    @classmethod
    def _inside_the_root(cls, value: str, info: ValidationInfo) -> str:
        path = posixpath.normpath(value)
        if not value or path == "." or value.startswith("/") or ".." in value.split("/"):
            raise invalid(f"{value!r} is not below the data root", "name a folder relative to it, without ..")
        return _nameable(path, info)

    @field_validator("target")
    @classmethod
    def _nameable_target(cls, value: str, info: ValidationInfo) -> str:
        return _nameable(value, info)

    @model_validator(mode="after")
    def _target_given(self, info: ValidationInfo) -> Self:
        target = self.target or f"{HOME}/{posixpath.basename(self.folder)}"
        path = "/" + posixpath.normpath(target).lstrip("/")
        if not target.startswith("/") or ".." in target.split("/"):
            raise invalid(f"target {target!r} is not an absolute path", "write a path such as /data")
        # A stored one is not judged anew.
        reserved = _RESERVED_TREES if info.context is None else (*_RESERVED_TREES, *_SYSTEM_TREES)
        if path in _RESERVED_TARGETS or f"{path}/".startswith(reserved):
            raise invalid(f"target {target!r} would hide what a container needs", "choose another path, such as /data")
        object.__setattr__(self, "target", path)
        return self


class FolderFields(SpecModel):
    dot_folders: bool = Field(
        default=True,
        description="mount my folders whose names start with a dot, such as .local, in the home directory",
        json_schema_extra=flag("--dot-folders/--no-dot-folders"),
    )


def _nameable(path: str, info: ValidationInfo) -> str:
    """Return the path. No file system has longer names; a stored one is not judged anew."""
    if info.context is not None and any(len(part.encode()) > MAX_NAME_BYTES for part in path.split("/")):
        raise invalid(f"a part of it is longer than {MAX_NAME_BYTES} bytes", "choose a shorter name")
    return path

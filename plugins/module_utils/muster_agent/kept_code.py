"""The compiled code of a module and its imports, kept on the agent.

Ansible sends sources in a zip file, at each visit. To unpack and compile them takes longer than all that a visit does.
So the control node sends a name of them first, and the sources only to an agent that does not keep their code
(`muster/ansible_gateway/kept_code.py`). The text of this file comes before each of Ansible's programs, and the programs
call it: it imports little, and nothing of Muster.
"""

from __future__ import annotations

import io
import marshal
import os
import stat
import sys
import zlib
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

# The role `session_runtime` makes and removes what it lies in: on other hosts nothing is kept.
DIRECTORY = Path("/opt/muster/module-code")
# Two versions of each of the control node's three modules, and some to spare.
_MOST_FILES = 8
_CHECKSUM_BYTES = 4

Codes = dict[str, tuple[bool, bytes]]
"""Whether each module is a package, and its marshalled code, by its name."""


class KeptModules:
    """Python's finder and loader of modules that need no file."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        if name not in self._codes:
            return None
        is_package, _ = self._codes[name]
        origin = f"{DIRECTORY}/{name.replace('.', '/')}{'/__init__' if is_package else ''}.py"
        spec = ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]
        # Ansible reads the `__file__` of its own package.
        spec.has_location = True
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - what a loader does

    def get_code(self, name: str) -> CodeType:
        return marshal.loads(self._codes[name][1])  # noqa: S302 - of this user's own file

    def get_source(self, _name: str) -> None:
        """Return no source: tracebacks name the lines."""


def read(key: str, directory: Path = DIRECTORY) -> Codes:
    """Return the code that is kept by this name for this version of Python; none if it was damaged, or is another's."""
    with suppress(OSError):
        if _is_own(directory):
            found = _path(key, directory).read_bytes()
            checksum, packed = found[:_CHECKSUM_BYTES], found[_CHECKSUM_BYTES:]
            # A host that lost its power may have kept a part, and Python does not check what it unmarshals.
            if checksum == _checksum(packed):
                codes: Codes = marshal.loads(packed)  # noqa: S302 - of this user's own file
                return codes
    return {}


def compiled(sources: bytes) -> Codes:
    """Return the code of all modules of a zip file."""
    from zipfile import ZipFile  # noqa: PLC0415 - takes 3 ms, and is needed once

    codes = {}
    with ZipFile(io.BytesIO(sources)) as packed:
        for file in packed.namelist():
            path = PurePosixPath(file)
            if path.suffix == ".py":
                is_package = path.stem == "__init__"
                name = ".".join((path.parent if is_package else path.with_suffix("")).parts)
                code = compile(packed.read(file), f"{DIRECTORY}/{file}", "exec", dont_inherit=True)
                codes[name] = is_package, marshal.dumps(code)
    return codes


def keep(key: str, codes: Codes, directory: Path = DIRECTORY) -> None:
    """Keep the code by this name, and remove the oldest. A host whose disk is full or read-only keeps nothing."""
    with suppress(OSError):
        directory.mkdir(0o700, exist_ok=True)
        if _is_own(directory):
            _write(_path(key, directory), marshal.dumps(codes))
            for file in sorted(directory.iterdir(), key=lambda f: f.stat().st_mtime, reverse=True)[_MOST_FILES:]:
                file.unlink()


def run(program: str, codes: Codes) -> None:
    """Run one of Ansible's programs with this code."""
    sys.meta_path.insert(0, KeptModules(codes))
    exec(compile(program, "<stdin>", "exec", dont_inherit=True), {"__name__": "__main__"})  # noqa: S102 - Ansible's own


def _path(key: str, directory: Path) -> Path:
    return directory / f"{key}-{sys.implementation.cache_tag}-{sys.hexversion:x}"


def _is_own(directory: Path) -> bool:
    """Return whether nobody else can write into the directory: what is read from it is executed."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _write(path: Path, packed: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_bytes(_checksum(packed) + packed)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def _checksum(packed: bytes) -> bytes:
    return zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big")

"""The ids that a kernel's user has on this host, and the mounts in which folders show the user's own."""

from __future__ import annotations

import errno
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import host_mounts, mapped_mounts
from ..engine.id_mapping import UnmappedIdError, id_mapping
from .launch_error import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..engine.api import EngineApi
    from ..engine.id_mapping import IdMapping
    from ..manifest import Kernel

_CANNOT = "the file system of one has no mounts with other ids, as the engine's userns-remap needs them"


class Owner(NamedTuple):
    """The owner of files written for a kernel, by the host's ids."""

    uid: int
    gid: int


class HostIds:
    """The engine's ids for one run: the host's own, unless the engine remaps them (`userns-remap`)."""

    def __init__(self, engine: EngineApi, opened: ExitStack) -> None:
        self._engine = engine
        self._opened = opened
        self._lock = threading.Lock()
        self._namespace: int | None = None

    @property
    def are_mapped(self) -> bool:
        """Whether a container's ids are others on this host."""
        return self._mapping() is not None

    def owner(self, kernel: Kernel) -> Owner:
        """Return a kernel's user on this host. Raises LaunchError where the engine lacks ids of its user or groups."""
        user: dict[str, Any] = kernel.spec["user"]
        mapping = self._mapping()
        if mapping is None:
            return Owner(user["uid"], user["gid"])
        try:
            for group in kernel.spec.get("groups", ()):
                mapping.host_gid(group)
            return Owner(mapping.host_uid(user["uid"]), mapping.host_gid(user["gid"]))
        except UnmappedIdError as error:
            raise LaunchError(f"{kernel.name}: {error}", permanent=False) from error

    def bind(self, descriptor: int, target: Path) -> None:
        """Mount an open directory at another place, where the engine's containers find its files' ids as on the disk.

        Raises OSError.
        """
        mapping = self._mapping()
        if mapping is None:
            host_mounts.bind(descriptor, target)
            return
        try:
            mapped_mounts.bind_mapped(descriptor, target, self._namespace_of(mapping))
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOSYS}:
                raise OSError(error.errno, _CANNOT) from error
            raise

    def _mapping(self) -> IdMapping | None:
        return id_mapping(self._engine.facts())

    def _namespace_of(self, mapping: IdMapping) -> int:
        with self._lock:
            if self._namespace is None:
                self._namespace = self._opened.enter_context(mapped_mounts.user_namespace(mapping))
            return self._namespace


@contextmanager
def host_ids(engine: EngineApi) -> Iterator[HostIds]:
    """Yield what one run knows of the engine's ids."""
    with ExitStack() as opened:
        yield HostIds(engine, opened)

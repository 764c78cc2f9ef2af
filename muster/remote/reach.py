"""The ways into sessions by a server's API."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from muster.core.values.errors import NotFoundError
from muster.remote.client import Client, session_path
from muster.service.questions.views import DetailsView
from muster.service.reach.logs import LogRequest
from muster.service.reach.programs import KernelPrograms
from muster.service.reach.views import AppAccessView, SshAccessView


class RemoteReach:
    """The remote twin of `OwnedReach`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @contextmanager
    def log(self, reference: str, kernel: str | None, request: LogRequest) -> Iterator[Iterable[bytes]]:
        request.check()
        path = f"{session_path(reference)}/kernels/{quote(kernel or '-', safe='')}/log"
        parameters = {
            "follow": request.follow,
            "tail": request.tail,
            "timestamps": request.timestamps,
            "app": request.app,
        }
        with self._client.stream(path, parameters) as pieces:
            yield pieces

    @contextmanager
    def programs(self, reference: str, kernel: str | None) -> Iterator[KernelPrograms]:
        from muster.remote.programs import RemotePrograms  # noqa: PLC0415 - few commands need it

        session = self._client.get(DetailsView, session_path(reference))
        named = kernel or session.kernels[0].name
        if named not in {one.name for one in session.kernels}:
            names = ", ".join(one.name for one in session.kernels)
            raise NotFoundError(f"session {session.name} has no container {named!r}; it has {names}")
        yield RemotePrograms(self._client, session.id, session.name, named)

    def ssh_access(self, reference: str) -> SshAccessView:
        return self._client.get(SshAccessView, f"{session_path(reference)}/ssh")

    def app_access(self, reference: str, name: str | None) -> AppAccessView:
        return self._client.get(AppAccessView, f"{session_path(reference)}/apps/{quote(name or '-', safe='')}")

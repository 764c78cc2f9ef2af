"""Views of the ways into a session."""

from typing import Self

from pydantic import Field

from muster.core.model.apps import AppState, AppStatus
from muster.service.reach.ssh_access import SshAccess
from muster.service.view import View


class SessionAppView(View):
    name: str
    port: int
    state: AppState | None
    reason: str | None

    @classmethod
    def of(cls, app: AppStatus) -> Self:
        return cls(name=app.app.name, port=app.app.port, state=app.state, reason=app.reason or None)


class AppAccessView(View):
    """An app with what its own door wants: who has its token is let in."""

    name: str
    port: int = Field(description="inside main1")
    url: str = Field(description="where it begins: a path, or a URL, with {port} for the port that it is opened at")
    state: AppState | None
    reason: str | None

    def address(self, local_port: int) -> str:
        """Return the URL behind a tunnel to `local_port` of the machine that it is opened on."""
        url = self.url.replace("{port}", str(local_port))
        return f"http://127.0.0.1:{local_port}{url}" if url.startswith("/") else url


class SshKernelView(View):
    name: str
    command: list[str] = Field(description="what a user types who has a key that the session knows")


class SshAccessView(View):
    """The sshd of a session's kernels."""

    session_id: str
    user: str
    host_key: str
    host_key_alias: str = Field(description="the name for the key: addresses and ports are used again")
    port: int = Field(description="inside each kernel")
    kernels: list[SshKernelView]

    @classmethod
    def of(cls, access: SshAccess) -> Self:
        return cls(
            session_id=access.session_id,
            user="work",
            host_key=access.host_key,
            host_key_alias=access.host_key_alias,
            port=access.port,
            kernels=[SshKernelView(name=name, command=list(words)) for name, words in access.commands.items()],
        )

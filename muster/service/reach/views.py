"""Views of the ways into a session."""

from typing import Self

from muster.core.model.apps import AppState, AppStatus
from muster.service.view import View


class SessionAppView(View):
    name: str
    port: int
    state: AppState | None
    reason: str | None

    @classmethod
    def of(cls, app: AppStatus) -> Self:
        return cls(name=app.app.name, port=app.app.port, state=app.state, reason=app.reason or None)

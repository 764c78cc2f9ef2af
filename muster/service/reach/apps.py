"""A session's apps as its users see them."""

from collections.abc import Sequence

from muster.core.agents.agent import Agent
from muster.core.model.apps import App, AppState, AppStatus, app_statuses, apps_of
from muster.core.model.reported import reported_kernels
from muster.core.model.session import Session, SessionState
from muster.core.values.errors import BadInputError, NotFoundError, NotPossibleInStateError


def session_apps(session: Session, agents: Sequence[Agent], now: float) -> list[AppStatus]:
    """Return the session's apps as main1's agent last reported them."""
    allocation = session.main.allocation
    reports = {agent.id: agent.report for agent in agents if allocation and agent.id == allocation.agent_id}
    entry = reported_kernels(session, reports).get(session.main.id)
    return app_statuses(session, entry.apps if entry else {}, now)


def app_named(session: Session, name: str | None) -> App:
    """Return the session's app of that name, or its only one. Raises NotFoundError, and BadInputError."""
    apps = apps_of(session.spec)
    names = ", ".join(app.name for app in apps)
    if not apps:
        raise NotFoundError(f"session {session.name} has no apps; launch it with an app or a published port")
    if name is None:
        if len(apps) > 1:
            raise BadInputError(f"session {session.name} has several apps; name one of {names}")
        return apps[0]
    for app in apps:
        if app.name == name:
            return app
    raise NotFoundError(f"session {session.name} has no app {name!r}; it has {names}")


def check_openable(session: Session, view: AppStatus) -> None:
    """Raises NotPossibleInStateError where nobody will ever answer."""
    if session.state is not SessionState.RUNNING:
        raise NotPossibleInStateError(
            f"session {session.name} is {session.state}; apps can be opened of sessions that are RUNNING"
        )
    if view.state is AppState.MISSING:
        raise NotPossibleInStateError(f"app {view.app.name} of session {session.name} is missing: {view.reason}")

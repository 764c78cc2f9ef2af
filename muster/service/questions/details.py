"""A session with all that `muster show` prints of it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.core.model.apps import AppStatus
from muster.core.model.session import Session, StoryLine
from muster.service.agents.gpu_map import KernelShare, session_shares
from muster.service.reach.apps import session_apps
from muster.service.sessions.visibility import Sees
from muster.service.usage.views import KernelUsageView, session_usage_views
from muster.store.store import Store

_MOST_DEPENDENCIES = 10


@dataclass(frozen=True, slots=True)
class Details:
    """A session with its story, apps and usage; `shares` are by kernel id."""

    session: Session
    story: Sequence[StoryLine]
    dependencies: Mapping[str, Session]
    apps: Sequence[AppStatus]
    shares: Mapping[str, Sequence[KernelShare]]
    uses: Sequence[KernelUsageView] = ()


def visible_details(store: Store, session: Session, sees: Sees) -> Details:
    """Return a session's details, with those of the sessions it depends on that the user may see."""
    has_apps = bool(session.spec.apps or session.spec.publish)
    agents = store.agents.all() if has_apps or has_gpus(session) else ()
    dependencies = store.get(session.spec.dependencies[:_MOST_DEPENDENCIES])
    return Details(
        session=session,
        story=store.story(session.id),
        dependencies={key: other for key, other in dependencies.items() if sees(other)},
        apps=session_apps(session, agents, time.time()) if has_apps else [],
        shares=session_shares(session, agents) if has_gpus(session) else {},
        uses=session_usage_views(session, store.uses.of_sessions([session.id])),
    )


def has_gpus(session: Session) -> bool:
    """Return whether one of the session's kernels has GPUs or shares of them."""
    return any(kernel.allocation and kernel.allocation.gpus for kernel in session.kernels)

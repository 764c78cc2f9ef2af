"""The service layer put together for the faces that run on a control node: the only door to its store."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from muster.core.images.committed import CommittedImage
from muster.core.images.identity import ImageIds
from muster.core.model.heartbeat import Heartbeat
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.token import Token
from muster.core.values.errors import PassInProgressError
from muster.service.agents.agents import Agents, shown_agents
from muster.service.agents.reservations import Reservations
from muster.service.audit import AuditLog
from muster.service.folders.measurements import Measurements
from muster.service.identity.oidc import OidcSignIns
from muster.service.identity.permissions import is_administrator
from muster.service.identity.tokens import Tokens
from muster.service.identity.unix_callers import UnixCallers
from muster.service.images.catalog import reference_of
from muster.service.images.commits_under_way import CommitsUnderWay
from muster.service.local_backend import LocalBackend
from muster.service.metrics import Meter
from muster.service.questions.views import HeartbeatView
from muster.service.queue.heartbeat import unworked_queue
from muster.service.scheduler.overrides import SiteLimits, SiteWeights
from muster.service.sessions.commands import SessionCommands
from muster.service.sessions.live import LiveChanges
from muster.service.sessions.queries import SessionQueries
from muster.service.specs.scope import SessionScope
from muster.service.wake import AGENTS, wake
from muster.settings import Settings
from muster.store.database.lock import queue_lock
from muster.store.store import Store

if TYPE_CHECKING:  # Ansible, the Docker SDK and the scheduler load slowly
    from muster.service.images.commits import Commit, CommitRequest
    from muster.service.images.distribution import ImageSync, Synced, SyncProgressed
    from muster.service.questions.decided_queue import DecidedQueue
    from muster.service.questions.what_if import WhatIf
    from muster.service.usage.watched import UsageCache


class Service:
    """The service of a control node, for the command line and the server.

    `commands` and `queries` are about everybody's sessions. `backend` gives those of one user.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._under_way = CommitsUnderWay()
        self._measurements = Measurements()
        self.settings = settings
        self.commands = SessionCommands(SessionScope(store, settings))
        self.queries = SessionQueries(store)
        self.agents = Agents(store, settings)
        self.reservations = Reservations(store, settings)
        self.limits = SiteLimits(store, settings)
        self.weights = SiteWeights(store, settings)
        self.tokens = Tokens(store)
        self.oidc = OidcSignIns(settings, self.tokens)
        self.unix_callers = UnixCallers(settings)

    @classmethod
    @contextmanager
    def opened(cls, settings: Settings) -> Iterator[Self]:
        """Open the database for as long as the context lasts. Raises StoreUnavailableError."""
        with closing(Store(settings.database_url)) as store:
            service = cls(store, settings)
            with closing(service._under_way):
                yield service

    @property
    def database(self) -> str:
        """Return the database's URL, without its password."""
        return self._store.shown_url

    def problem_of_cluster(self) -> str:
        """Return why the queue cannot be worked under the settings' name of the cluster; empty if it can."""
        return self._store.queue.problem_of_cluster(self.settings.cluster)

    def lossy_settings(self) -> tuple[str, ...]:
        """Return the settings of the database's server by which commits may be lost in a crash."""
        return self._store.lossy_settings()

    def backend(self, token: Token) -> LocalBackend:
        """Return what the token's user may see and change."""
        return LocalBackend(
            self._store, self.settings, self._under_way, self._measurements, lambda: self._decided_queue, token
        )

    def read_ahead(self) -> None:
        """Read and decide the queue, so that its first reader waits for neither that nor the compiled code.

        Raises SettingsError when a scheduler plugin cannot be used, and StoreUnavailableError.
        """
        self._decided_queue.queue()

    @cached_property
    def _decided_queue(self) -> "DecidedQueue":
        from muster.service.questions.decided_queue import DecidedQueue  # noqa: PLC0415 - the scheduler loads slowly

        return DecidedQueue(self._store, self.settings)

    def served(self) -> AbstractContextManager[None]:
        """Let no backup be restored for as long as the context lasts."""
        from muster.service.backup import served  # noqa: PLC0415 - only a server needs it

        return served(self.settings)

    def live_changes(self) -> LiveChanges:
        """Return a reader of changes of sessions as they happen; it begins to read when it is run."""
        return LiveChanges(self._store)

    def usage_cache(self) -> "UsageCache":
        """Return a cache of what running sessions use at this moment."""
        from muster.service.usage.watched import UsageCache  # noqa: PLC0415 - the Docker SDK loads slowly

        return UsageCache(self._store)

    def audit_log(self) -> AuditLog:
        """Return the log of what users do."""
        return AuditLog(self.settings)

    def meter(self) -> Meter:
        """Return what measures the cluster for Prometheus."""
        return Meter(self._store, self.settings)

    def snapshot(self) -> Snapshot:
        """Return the agents, as `shown_agents`, and all sessions that have not ended, as of one moment."""
        return shown_agents(self._store, self.settings)

    def check_database(self) -> None:
        """Raises StoreUnavailableError where the database does not answer."""
        self._store.last_event()

    def heartbeat(self) -> HeartbeatView:
        """Return whether nobody has worked the queue for too long, though a session waits or runs."""
        return HeartbeatView.of(unworked_queue(self._store, self.settings))

    def last_heartbeat(self) -> Heartbeat | None:
        """Return what worked the queue last, and when."""
        return self._store.heartbeats.last()

    def what_if(self) -> "WhatIf":
        """Return questions about the queue that change nothing."""
        from muster.service.questions.what_if import WhatIf  # noqa: PLC0415 - the scheduler loads slowly

        return WhatIf(self._store, self.settings)

    def image_reference(self, word: str) -> str:
        """Return the reference behind a name or an alias of the catalog; any other word is taken for a reference."""
        return reference_of(self.settings, self._store, word)

    def image_ids(self) -> ImageIds:
        """Return which ids mean one image."""
        return self._store.image_ids.all()

    def copy_image(
        self, sync: "ImageSync", progressed: "SyncProgressed", finished: Callable[["Synced"], None]
    ) -> list["Synced"]:
        """Copy an image to its targets and return what came of each, by agent id. Raises as `synced`.

        An image that was made of a session is the one that was made then, whatever the source has under its name.
        """
        from muster.service.images.distribution import note_ids, synced  # noqa: PLC0415 - the Docker SDK loads slowly

        name, _, tag = sync.reference.rpartition(":")
        made = self._store.images.find(name, tag)
        if made is not None and made.is_made:
            is_held = sync.ids.are_one(sync.image_id, made.image_id)
            sync = sync if is_held else replace(sync, image_id=made.image_id)
        outcomes = synced(sync, self.settings.image_max_size, progressed, finished)
        note_ids(self._store, [outcome.copied for outcome in outcomes if outcome.copied is not None])
        if any(outcome.changed for outcome in outcomes):
            wake(self.settings, self._store, AGENTS)
        return outcomes

    def planned_commit(self, session: Session, request: "CommitRequest", by: str) -> "Commit":
        """Return what committing a kernel would make. Raises as `commits.planned_commit`."""
        from muster.service.images.commits import planned_commit  # noqa: PLC0415 - the Docker SDK loads slowly

        of_anybody = is_administrator(self.settings, by)
        return planned_commit(self._store, self.settings, session, request, by, of_anybody=of_anybody)

    def commit(self, planned: "Commit", progressed: Callable[[int, int], None]) -> CommittedImage:
        """Make the image and return it. Raises as `commits.committed`."""
        from muster.service.images.commits import committed  # noqa: PLC0415 - the Docker SDK loads slowly

        return committed(self._store, self.settings, planned, progressed)


def queue_is_worked(settings: Settings) -> bool:
    """Return whether a daemon or a pass works the queue at this moment."""
    try:
        with queue_lock(settings.database_url, settings.state_dir, wait=False):
            return False
    except PassInProgressError:
        return True

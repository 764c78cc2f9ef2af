"""Removing pulled images that nobody needs from agents whose disks are short."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Lock

from muster.core.agents.agent import Agent
from muster.core.images.collection import CollectionRules, PulledImage, removable
from muster.core.images.names import familiar
from muster.core.model.snapshot import Snapshot
from muster.core.values.errors import ImageError, MusterError, SettingsError
from muster.core.values.units import format_duration, spell_bytes
from muster.engine.commit import remove
from muster.service.images.catalog import default_reference, whole_catalog
from muster.settings import Settings
from muster.store.store import Store

log = logging.getLogger(__name__)
# How often the last use of an image in use is recorded.
_NOTED_EVERY_S = 60.0
Remove = Callable[[Agent, str], bool]


class ImageCollection:
    """The removal of one image at a time from each agent, by `start`. The next report says whether that was enough."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        start: Callable[[Callable[[], None]], None],
        remove_image: Remove = remove,
    ) -> None:
        self._store = store
        self._settings = settings
        self._start = start
        self._remove_image = remove_image
        self._lock = Lock()
        self._busy: set[str] = set()

    def __call__(self, snapshot: Snapshot, agents: Iterable[Agent]) -> None:
        """Note what the sessions need, and begin removals on agents that have just reported."""
        if self._settings.image_keep_s is None:
            return
        pulled = self._with_needs(snapshot, self._store.pulled_images.all())
        if not pulled:
            return
        try:
            kept = self._kept(snapshot)
        except SettingsError:  # it is not known what the catalog needs
            return
        rules = CollectionRules(self._settings.image_keep_s, self._settings.image_min_free)
        for agent in agents:
            image = removable(agent, pulled, kept, snapshot.now, rules)
            if image is not None and self._takes(agent):
                self._begin(agent, image, snapshot.now)

    def _with_needs(self, snapshot: Snapshot, pulled: Sequence[PulledImage]) -> list[PulledImage]:
        """Return what agents still have of these, with the present time where a placed session needs it."""
        now = snapshot.now
        needed = {
            (kernel.allocation.agent_id, familiar(kernel.image))
            for session in snapshot.placed
            for kernel in session.kernels
            if kernel.allocation
        }
        # A pull under way may bring a removed one again: its row is the pull's to write.
        held = [image for image in pulled if image.removed_at is None]
        used = {
            image: replace(image, needed_at=now)
            for image in held
            if (image.agent_id, image.reference) in needed and abs(now - image.needed_at) >= _NOTED_EVERY_S
        }
        if used:
            self._store.pulled_images.save(list(used.values()))
        return [used.get(image, image) for image in held]

    def _kept(self, snapshot: Snapshot) -> frozenset[str]:
        """Return names and ids that a session, queued ones too, or the catalog needs. Raises SettingsError."""
        named = {kernel.image for session in snapshot.sessions for kernel in session.kernels}
        named |= {version.reference for version in whole_catalog(self._settings, self._store)}
        named.add(default_reference(self._settings))
        return frozenset(named | {familiar(reference) for reference in named})

    def _takes(self, agent: Agent) -> bool:
        with self._lock:
            if agent.id in self._busy:
                return False
            self._busy.add(agent.id)
            return True

    def _begin(self, agent: Agent, image: PulledImage, now: float) -> None:
        self._start(lambda: self._remove(agent, image, now))

    def _remove(self, agent: Agent, image: PulledImage, now: float) -> None:
        try:
            self._remove_image(agent, image.reference)
            unused, free = format_duration(int(now - image.needed_at)), spell_bytes(agent.report.disk.free_bytes)
            log.info(
                "image %s was removed from agent %s: no session there has needed it for %s, and the disk had %s free",
                *(image.reference, agent.id, unused, free),
            )
            self._store.pulled_images.save([replace(image, removed_at=now)])
            self._store.pulled_images.forget_old(now)
        except ImageError as error:
            log.warning("agent %s: %s", agent.id, error)
            # Something there uses it. Meanwhile, others are removed.
            self._store.pulled_images.save([replace(image, needed_at=now)])
        except MusterError as error:
            log.warning("image %s on agent %s: %s", image.reference, agent.id, error)
        finally:
            with self._lock:
                self._busy.discard(agent.id)

"""The queue as a user may see it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.core.model.heartbeat import Unworked
from muster.core.whatif.redaction import redacted
from muster.service.questions.decided_queue import Queued
from muster.service.queue.heartbeat import unworked_queue
from muster.service.sessions.visibility import Sees
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class VisibleQueue:
    """The pending sessions that a user may see, in their order; their waits name no others.

    `lengths` says by resource group how many sessions have a place in it, whosever they are; one that is about to
    start has none. `names` are by id those of the sessions that they wait for. `unworked` is set if nobody works it.
    """

    queued: Sequence[Queued]
    lengths: Mapping[str, int]
    names: Mapping[str, str]
    unworked: Unworked | None = None


def visible_queue(store: Store, settings: Settings, everything: Sequence[Queued], sees: Sees) -> VisibleQueue:
    """Return of the whole queue what a user may see."""
    lengths = Counter({queued.session.spec.resource_group: 0 for queued in everything})
    lengths.update(queued.session.spec.resource_group for queued in everything if queued.wait)
    visible = [queued for queued in everything if sees(queued.session)]
    waited_for = {session_id for queued in visible if queued.wait for session_id in queued.wait.waits_for}
    others = store.get(sorted(waited_for))
    hidden = {key for key, other in others.items() if not sees(other)}
    names = {key: f"{other.name} ({other.state})" for key, other in others.items() if key not in hidden}
    queued = [one if one.wait is None else replace(one, wait=redacted(one.wait, hidden)) for one in visible]
    return VisibleQueue(queued, lengths, names, unworked_queue(store, settings))

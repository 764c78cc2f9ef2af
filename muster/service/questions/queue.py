"""The queue, as somebody is shown it who may see only some of its sessions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.core.model.session import Session
from muster.core.whatif.discretion import discreet
from muster.service.questions.what_if import Queued, WhatIf
from muster.service.sessions.sessions import Sessions


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """`queued` are those that may be seen, in their order; their waits name no others.

    `lengths` is by resource group how many have a place in it, whosever they are: what is about to start has none.
    `names` is by id what the sessions that they wait for are called.
    """

    queued: Sequence[Queued]
    lengths: Mapping[str, int]
    names: Mapping[str, str]


def seen_queue(service: Sessions, sees: Callable[[Session], bool]) -> SeenQueue:
    everything = WhatIf(service).queue()
    lengths = Counter({queued.session.spec.resource_group: 0 for queued in everything})
    lengths.update(queued.session.spec.resource_group for queued in everything if queued.wait)
    queued = [one for one in everything if sees(one.session)]
    waited_for = {session_id for one in queued if one.wait for session_id in one.wait.waits_for}
    others = service.store.get(sorted(waited_for))
    hidden = {key for key, other in others.items() if not sees(other)}
    names = {key: f"{other.name} ({other.state})" for key, other in others.items() if key not in hidden}
    told = [one if one.wait is None else replace(one, wait=discreet(one.wait, hidden)) for one in queued]
    return SeenQueue(told, lengths, names)

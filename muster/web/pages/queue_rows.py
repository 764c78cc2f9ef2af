"""The rows of the queue page: each waiting session with its place and why it waits."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.core.model.wait import WaitCode
from muster.core.whatif.explain import HOPELESS, Surroundings, explain
from muster.core.whatif.start_estimate import start_estimate
from muster.service.questions.queue import VisibleQueue
from muster.service.questions.views import QueuedView
from muster.service.questions.what_if import Queued
from muster.web.words import wait_label

MAX_ROWS = 200
"""The most rows of one resource group; a longer page helps nobody."""

_STARTING = "starts in the next pass of the scheduler"
_STARTS, _HELD, _NEVER = "about to start", "held", "that can never start"


@dataclass(frozen=True, slots=True)
class Row:
    """A waiting session. `position` is 0 if it is about to start; `more` are further lines on why it waits."""

    session: QueuedView
    position: int
    code: str
    why: str
    more: Sequence[str]
    start: str
    is_held: bool
    is_hopeless: bool
    is_selected: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A resource group's part of the queue.

    `length` counts all its places, `left_out` the visible sessions without a row.
    """

    name: str
    length: int
    rows: Sequence[Row]
    left_out: int
    summary: str


def groups_of(
    visible: VisibleQueue, now: float, clock_text: Callable[[float], str], selected: frozenset[str]
) -> list[Group]:
    """Return the resource groups with waiting sessions, by name; `selected` are ids of sessions."""
    around = Surroundings(now, clock_text, visible.names, visible.unworked is None)
    found: dict[str, list[Queued]] = {name: [] for name in sorted(visible.lengths)}
    for queued in visible.queued:
        found[queued.session.spec.resource_group].append(queued)
    return [_group(name, visible.lengths[name], queued, around, selected) for name, queued in found.items()]


def _group(name: str, length: int, queued: Sequence[Queued], around: Surroundings, selected: frozenset[str]) -> Group:
    rows = [_row(one, around, selected) for one in queued[:MAX_ROWS]]
    return Group(name, length, rows, len(queued) - len(rows), _summary(queued, length))


def _row(queued: Queued, around: Surroundings, selected: frozenset[str]) -> Row:
    session, wait = QueuedView.of(queued), queued.wait
    return Row(
        session=session,
        position=wait.position if wait else 0,
        code=wait_label(wait),
        why=wait.message if wait else _STARTING,
        more=explain(session, wait, 0, around, advice=False) if wait else (),
        start=start_estimate(wait, around),
        is_held=wait is not None and wait.code is WaitCode.HELD,
        is_hopeless=wait is not None and wait.code in HOPELESS,
        is_selected=session.id in selected,
    )


def _summary(queued: Sequence[Queued], length: int) -> str:
    """Return a line such as `5 sessions wait, 2 of them yours: 1 held, 1 that can never start; 1 about to start`.

    It counts kinds of visible sessions only.
    """
    kinds = Counter(_kind(one) for one in queued)
    starting = kinds.pop(_STARTS, 0)
    visible = len(queued) - starting
    text = f"{length or 'no'} {'session waits' if length == 1 else 'sessions wait'}"
    if visible < length:
        text += f", {visible or 'none'} of them yours"
    parts = [f"{kinds[kind]} {kind}" for kind in (_HELD, _NEVER) if kinds[kind]]
    text += f": {', '.join(parts)}" if parts else ""
    return f"{text}; {starting} {_STARTS}" if starting else text


def _kind(queued: Queued) -> str:
    if queued.wait is None:
        return _STARTS
    if queued.wait.code is WaitCode.HELD:
        return _HELD
    return _NEVER if queued.wait.code in HOPELESS else ""

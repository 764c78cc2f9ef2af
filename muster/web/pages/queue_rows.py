"""What the page of the queue says of each session that waits."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.core.model.plan import Wait, WaitCode
from muster.core.model.session import Session
from muster.core.whatif.explain import HOPELESS, Surroundings, code_text, explain
from muster.core.whatif.start_estimate import start_told
from muster.service.questions.queue import VisibleQueue
from muster.service.questions.what_if import Queued

MOST_ROWS = 200
"""Of one resource group; a page of more is of no use to anybody."""

_STARTING = "starts in the next pass of the scheduler"
_STARTS, _HELD, _NEVER = "about to start", "held", "that can never start"


@dataclass(frozen=True, slots=True)
class Row:
    """`position` is 0 for what is about to start; `more` are further lines on why it waits."""

    session: Session
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

    `length` counts the places in it, also of those that may not be seen; `left_out` those that may be and have no row.
    """

    name: str
    length: int
    rows: Sequence[Row]
    left_out: int
    summary: str


def groups_of(
    seen: VisibleQueue, now: float, clock_text: Callable[[float], str], selected: frozenset[str]
) -> list[Group]:
    """Every resource group in which something waits, by name; `selected` are ids of sessions."""
    around = Surroundings(now, clock_text, seen.names)
    found: dict[str, list[Queued]] = {name: [] for name in sorted(seen.lengths)}
    for queued in seen.queued:
        found[queued.session.spec.resource_group].append(queued)
    return [_group(name, seen.lengths[name], queued, around, selected) for name, queued in found.items()]


def _group(name: str, length: int, queued: Sequence[Queued], around: Surroundings, selected: frozenset[str]) -> Group:
    rows = [_row(one, around, selected) for one in queued[:MOST_ROWS]]
    return Group(name, length, rows, len(queued) - len(rows), _summary(queued, length))


def _row(queued: Queued, around: Surroundings, selected: frozenset[str]) -> Row:
    session, wait = queued.session, queued.wait
    return Row(
        session=session,
        position=wait.position if wait else 0,
        code=code_text(wait),
        why=_why(wait) if wait else _STARTING,
        more=explain(session, wait, 0, around, advice=False) if wait else (),
        start=start_told(wait, around),
        is_held=wait is not None and wait.code is WaitCode.HELD,
        is_hopeless=wait is not None and wait.code in HOPELESS,
        is_selected=session.id in selected,
    )


def _summary(queued: Sequence[Queued], length: int) -> str:
    """`5 sessions wait, 2 of them yours: 1 held, 1 that can never start; 1 about to start`.

    The kinds are of those that may be seen.
    """
    kinds = Counter(_kind(one) for one in queued)
    starting = kinds.pop(_STARTS, 0)
    seen = len(queued) - starting
    text = f"{length or 'no'} {'session waits' if length == 1 else 'sessions wait'}"
    if seen < length:
        text += f", {seen or 'none'} of them yours"
    parts = [f"{kinds[kind]} {kind}" for kind in (_HELD, _NEVER) if kinds[kind]]
    text += f": {', '.join(parts)}" if parts else ""
    return f"{text}; {starting} {_STARTS}" if starting else text


def _kind(queued: Queued) -> str:
    if queued.wait is None:
        return _STARTS
    if queued.wait.code is WaitCode.HELD:
        return _HELD
    return _NEVER if queued.wait.code in HOPELESS else ""


def _why(wait: Wait) -> str:
    """The message, without the code that stands beside it."""
    prefix = f"{wait.code.replace('-', ' ')}: "
    return wait.message.removeprefix(prefix)

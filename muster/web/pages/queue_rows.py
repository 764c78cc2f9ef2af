"""The rows of the queue page: waiting sessions with their place and why they wait."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from muster.core.model.wait import WaitCode
from muster.core.whatif.explain import HOPELESS, Surroundings, explain
from muster.core.whatif.start_estimate import start_estimate
from muster.service.questions.queue_pages import QueuePage, QueuePart, QueueRow
from muster.service.questions.views import QueuedView
from muster.web.words import beside_label, wait_label


@dataclass(frozen=True, slots=True)
class Row:
    """A waiting session, or several that are alike.

    `last_id` is the last one's. `places` is empty if it is about to start; `more` are further lines on why it waits.
    `code` is the wait in few words, `why` what else there is to say of it. `value` is what its checkbox sends.
    """

    session: QueuedView
    title: str
    last_id: str
    count: int
    places: str
    code: str
    why: str
    more: Sequence[str]
    start: str
    is_held: bool
    is_hopeless: bool
    value: str
    is_selected: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A resource group's part of the queue. `length` counts all its places, `row_count` the rows of all pages."""

    name: str
    length: int
    rows: Sequence[Row]
    row_count: int
    summary: str


def groups_of(
    page: QueuePage, now: float, clock_text: Callable[[float], str], selected: frozenset[str]
) -> Sequence[Group]:
    """Return the resource groups with waiting sessions, by name; `selected` are values of checkboxes."""
    around = Surroundings(now, clock_text, page.names, page.unworked is None)
    return [_group(part, around, selected) for part in page.parts]


def _group(part: QueuePart, around: Surroundings, selected: frozenset[str]) -> Group:
    rows = [_row(row, around, selected) for row in part.rows]
    return Group(part.name, part.length, rows, part.row_count, _summary(part.codes, part.length))


def _row(row: QueueRow, around: Surroundings, selected: frozenset[str]) -> Row:
    session, wait = QueuedView.of(row.first), row.first.wait
    value = session.id if row.count == 1 else f"row:{session.id}:{row.count}:{row.digest}"
    return Row(
        session=session,
        title=_title(row),
        last_id=row.last.session.id,
        count=row.count,
        places=_places(row),
        code=wait_label(wait),
        why=beside_label(wait),
        more=explain(session, wait, 0, around, advice=False) if wait else (),
        start=start_estimate(wait, around),
        is_held=wait is not None and wait.code is WaitCode.HELD,
        is_hopeless=wait is not None and wait.code in HOPELESS,
        value=value,
        is_selected=value in selected,
    )


def _title(row: QueueRow) -> str:
    first, last = row.first.session, row.last.session
    return first.name if row.count == 1 else f"{first.name} … {last.name}"


def _places(row: QueueRow) -> str:
    first, last = ((queued.wait.position if queued.wait else 0) for queued in (row.first, row.last))
    if not first:
        return ""
    return str(first) if first == last else f"{first} to {last}"


def _summary(codes: Mapping[WaitCode | None, int], length: int) -> str:
    """Return a line such as `5 sessions wait, 2 of them yours: 1 held, 1 that can never start; 1 about to start`.

    It counts kinds of visible sessions only.
    """
    starting, held = codes.get(None, 0), codes.get(WaitCode.HELD, 0)
    never = sum(count for code, count in codes.items() if code in HOPELESS)
    visible = sum(codes.values()) - starting
    text = f"{length or 'no'} {'session waits' if length == 1 else 'sessions wait'}"
    if visible < length:
        text += f", {visible or 'none'} of them yours"
    parts = [f"{count} {kind}" for count, kind in ((held, "held"), (never, "that can never start")) if count]
    text += f": {', '.join(parts)}" if parts else ""
    return f"{text}; {starting} about to start" if starting else text

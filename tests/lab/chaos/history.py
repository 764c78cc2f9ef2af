"""What the promises say of a history: the journal that the commands themselves wrote, and how the sessions ended."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

FINAL = frozenset({"TERMINATED", "CANCELLED", "ERROR"})


@dataclass(frozen=True, slots=True)
class Line:
    """A command of a kernel begins or ends; `run` is a name of this one process, new each time."""

    what: str
    session: str
    kernel: str
    run: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A session's end as Muster reports it. `by_user`: a user ended it, which is no failure."""

    name: str
    state: str
    result: str | None
    requeues: int = 0
    requeue: bool = False
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """A history: `accepted` are the sessions promised to users, `known` all that Muster knows in the end."""

    journal: Sequence[Line]
    accepted: Sequence[str]
    known: Mapping[str, Ended]
    left: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_journal(text: str) -> list[Line]:
    """Return the journal's lines. One that was cut off by a loss of power is left out."""
    lines = (line.split() for line in text.splitlines())
    return [Line(*words) for words in lines if len(words) == 4 and words[0] in {"begin", "end"}]


def broken_promises(history: History) -> list[str]:
    """Return a line for each promise that the history breaks."""
    return [*_lost(history), *_run_twice(history), *_false_results(history), *_left_over(history)]


def _lost(history: History) -> Iterator[str]:
    for name in history.accepted:
        session = history.known.get(name)
        if session is None:
            yield f"{name} was accepted and is forgotten"
        elif session.state not in FINAL:
            yield f"{name} is {session.state} for ever"


def _run_twice(history: History) -> Iterator[str]:
    begun = Counter((line.session, line.kernel) for line in history.journal if line.what == "begin")
    for (name, kernel), times in begun.items():
        session = history.known.get(name)
        allowed = 1 + session.requeues if session is not None and session.requeue else 1
        if times > allowed:
            yield f"the command of {name}:{kernel} began {times} times; at most {allowed} may be"


def _false_results(history: History) -> Iterator[str]:
    ended: dict[str, set[str]] = defaultdict(set)
    begun: dict[str, set[str]] = defaultdict(set)
    for line in history.journal:
        (ended if line.what == "end" else begun)[line.session].add(line.kernel)
    for name in history.accepted:
        session = history.known.get(name)
        if session is None or session.result != "SUCCESS" or session.by_user:
            continue
        if missing := begun[name] - ended[name]:
            yield f"{name} is a SUCCESS, but its command on {', '.join(sorted(missing))} never ended"


def _left_over(history: History) -> Iterator[str]:
    for host, things in history.left.items():
        if things:
            yield f"left on {host}: {', '.join(things)}"

"""What arrives in a simulation: a workload file, a trace, or the site's own history."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from muster.core.model.session import Session, SessionState, kernel_count, kernels_of, spare_kernels_of
from muster.core.simulation.simulation import Job
from muster.core.spec.base import SpecModel
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import NAME_PATTERN, SessionSpec
from muster.core.spec.values import invalid
from muster.core.values.array import array_indexes
from muster.core.values.errors import BadInputError, FieldError, SpecError
from muster.core.values.units import parse_span
from muster.service.questions.imagined_cluster import read_list
from muster.service.questions.traces import Format, NoTime, Seconds, entries

MOST_JOBS = 1_000_000
_DEPENDENCIES = ("after", "after_ok", "after_any")
_MOST_PROBLEMS = 20


def _span(value: object) -> float:
    """Return the seconds of a span of time, which may be zero."""
    if isinstance(value, Seconds):
        return value
    try:
        return float(parse_span(value))
    except ValueError as error:
        bare = "seconds" if isinstance(value, NoTime) else "minutes"
        raise invalid(str(error), f"write 0s, 90s, 30m, 2h, 1d; a bare number is {bare}") from None


Span = Annotated[float, BeforeValidator(_span)]


class Arrival(SpecModel):
    """The arrival of an entry's session: when, how often, whose, and for how long. The rest is its spec."""

    at: Span = Field(default=0.0, description="when the first comes, from the beginning")
    duration: Span = Field(description="how long each runs when nothing ends it before")
    count: int = Field(default=1, ge=1, le=MOST_JOBS, description="how many come")
    every: Span = Field(default=0.0, description="time between two of them")
    begin: Span | None = Field(default=None, description="when they may start, from the beginning")
    owner: str = Field(default="somebody", min_length=1, description="whose they are")


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs of a file, and how many of it are left out since nobody knows how long they ran."""

    jobs: list[Job]
    left_out: int = 0


def workload(path: Path, form: Format) -> Workload:
    """Return the jobs of a YAML file (`sessions:`, a list) or of a trace, whose times are in seconds.

    Raises BadInputError with one line for each thing that is wrong, with its place in the file.
    """
    jobs = _Jobs()
    problems: list[str] = []
    left_out = 0
    is_trace = path.suffix == ".csv" or form != Format()
    for where, entry in entries(path, form) if is_trace else _entries(path):
        if form != Format() and "duration" not in entry:
            left_out += 1
            continue
        try:
            jobs.add(entry)
        except SpecError as error:
            problems += [f"{path}: {where}{item}" for item in error.errors]
    try:
        found = [] if problems else jobs.resolved()
    except SpecError as error:
        problems = [f"{path}: {item}" for item in error.errors]
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        raise BadInputError(
            "\n".join((*problems[:_MOST_PROBLEMS], *([f"{path}: {more} more like these"] if more > 0 else ())))
        )
    if not found and left_out:
        raise BadInputError(f"{path}: of none of its {left_out} jobs is it known how long it ran; give a duration")
    if not found:
        raise BadInputError(f"{path} names no session; write sessions: and lines such as - {{at: 0s, duration: 30m}}")
    return Workload(found, left_out)


def history(sessions: Iterable[Session], now: float) -> list[Job]:
    """Return the sessions as they came, each as long as it ran; one that still runs, as long as it has so far.

    Those that never ran are left out: nobody knows how long they would have.
    """
    jobs = [
        Job(_as_submitted(session), max(0.0, (session.ended_at or now) - session.started_at))
        for session in sessions
        if session.started_at is not None
    ]
    known = {job.session.id for job in jobs}
    return [replace(job, session=_depending_on(job.session, known.__contains__)) for job in jobs]


def _as_submitted(session: Session) -> Session:
    spec = session.spec.model_copy(update={"hold": False})
    ids = tuple(kernel.id for kernel in session.possible_kernels)
    kernels = kernels_of(spec, ids, session.main.image)
    spare = spare_kernels_of(spec, ids, session.main.image)
    fresh = Session(session.id, session.name, session.owner, spec, kernels, session.submitted_at)
    # With the time that it was given meanwhile: it ran as long as that let it.
    extended_s = session.extended_s
    return replace(
        fresh, spare=spare, array_id=session.array_id, array_index=session.array_index, extended_s=extended_s
    )


def _depending_on(session: Session, exists: Callable[[str], bool]) -> Session:
    spec = session.spec
    kept = {name: tuple(i for i in getattr(spec, name) if exists(i)) for name in _DEPENDENCIES}
    return replace(session, spec=spec.model_copy(update=kept))


class _Jobs:
    """The sessions made from entries. Ids are numbers, so that equal files give equal results."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._specs: dict[tuple[object, ...], SessionSpec] = {}
        self._by_name: dict[str, list[str]] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        """Raises SpecError."""
        arrival, spec, called = self._validated(entry)
        indexes: Sequence[int | None] = array_indexes(spec.array) if spec.array else [None]
        if len(self._jobs) + arrival.count * len(indexes) > MOST_JOBS:
            raise SpecError([FieldError("count", "that is too many sessions", f"ask for {MOST_JOBS} at the most")])
        for number in range(arrival.count):
            at = arrival.at + number * arrival.every
            name = called if arrival.count == 1 or not called else f"{called}-{number + 1}"
            array_id = _id(len(self._jobs)) if spec.array else None
            for index in indexes:
                self._add_one(arrival, spec, (called, name), at, array_id, index)

    def _validated(self, entry: Mapping[str, Any]) -> tuple[Arrival, SessionSpec, str]:
        """Return the entry's two parts, and its name. Entries of a trace that differ by their names share a spec.

        When it may start is not in the spec yet: that is not a time of the calendar here.
        """
        name = entry.get("name", "")
        fields = {key: value for key, value in entry.items() if key not in Arrival.model_fields and key != "name"}
        key = tuple(sorted(fields.items())) if all(isinstance(value, str | int) for value in fields.values()) else None
        known = None if key is None else self._specs.get(key)
        if known is not None and isinstance(name, str) and NAME_PATTERN.fullmatch(name):
            return _arrival(entry), known, name
        arrival, spec = _validated(entry)
        called = spec.name
        if key is not None:
            spec = self._specs[key] = spec.model_copy(update={"name": ""}) if called else spec
        return arrival, spec, called

    def _add_one(
        self,
        arrival: Arrival,
        spec: SessionSpec,
        names: tuple[str, str],
        at: float,
        array_id: str | None,
        index: int | None,
    ) -> None:
        """Add a session. `names` are the entry's, and this one's of those of the entry."""
        number = len(self._jobs)
        called, base = names
        name = base if index is None or not base else f"{base}-{index}"
        ids = (_id(number), *(f"{_id(number)}.{rank}" for rank in range(1, kernel_count(spec))))
        spec = spec if arrival.begin is None else spec.model_copy(update={"begin": arrival.begin})
        session = Session(
            id=ids[0],
            name=name or f"session-{number + 1}",
            owner=arrival.owner,
            spec=spec,
            kernels=kernels_of(spec, ids, spec.image),
            spare=spare_kernels_of(spec, ids, spec.image),
            submitted_at=at,
            state=SessionState.PENDING,
            held_by=arrival.owner if spec.hold else None,
            array_id=array_id,
            array_index=index,
        )
        for known_as in {called, base, name} - {""}:
            self._by_name.setdefault(known_as, []).append(session.id)
        self._jobs.append(Job(session, arrival.duration))

    def resolved(self) -> list[Job]:
        """Return the specs with ids for the names of dependencies. Raises SpecError."""
        return [replace(job, session=self._resolved(job.session)) for job in self._jobs]

    def _resolved(self, session: Session) -> Session:
        changes: dict[str, tuple[str, ...]] = {}
        for field in _DEPENDENCIES:
            names = getattr(session.spec, field)
            for name in names:
                if name not in self._by_name:
                    problem, remedy = f"no session of the workload is called {name!r}", "name one of its sessions"
                    raise SpecError([FieldError(f"{session.name}.{field}", problem, remedy)])
            if names:
                changes[field] = tuple(session_id for name in names for session_id in self._by_name[name])
        return replace(session, spec=session.spec.model_copy(update=changes)) if changes else session


def _id(number: int) -> str:
    return f"{number:08d}"


def _arrival(entry: Mapping[str, Any]) -> Arrival:
    return validated(Arrival, {name: value for name, value in entry.items() if name in Arrival.model_fields})


def _validated(entry: Mapping[str, Any]) -> tuple[Arrival, SessionSpec]:
    """Raises SpecError with the errors of both."""
    errors: list[FieldError] = []
    arrival, spec = None, None
    try:
        arrival = _arrival(entry)
    except SpecError as error:
        errors += error.errors
    try:
        fields = {name: value for name, value in entry.items() if name not in Arrival.model_fields}
        spec = validated(SessionSpec, {"shm": 0, **fields})
    except SpecError as error:
        errors += error.errors
    if arrival is None or spec is None:
        raise SpecError(errors)
    return arrival, spec


def _entries(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, entry in enumerate(read_list(path, "sessions")):
        yield f"sessions[{number}].", {str(name): value for name, value in entry.items()}

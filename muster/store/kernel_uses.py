"""What kernels used, in the database: a row for each of their launches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from muster.core.usage.by_owner import SessionRun
from muster.core.usage.kernel import KernelUsage
from muster.core.usage.report import RunUsage
from muster.core.values.slots import Slots, total
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.tables import kernel_uses, kernels, sessions

_CHUNK = 500
_FIELDS = tuple(field.name for field in fields(KernelUsage))
_SIZE = sessions.c.spec["cluster_size"].as_string().label("size")


class EarlierRun(NamedTuple):
    """A run of a session that was queued again or restarted since: in the launch of that generation."""

    session_id: str
    generation: int


class KernelUses:
    """A table of kernels' usage. Rows are replaced as a whole."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def save(self, uses: Iterable[KernelUsage]) -> None:
        """Save usage; that of sessions that were removed since is left out."""
        rows = sorted((asdict(use) for use in uses), key=lambda row: (row["kernel_id"], row["generation"]))
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            with writing(self._engine) as connection:
                ids = sorted({row["session_id"] for row in some})
                there = set(connection.execute(sa.select(sessions.c.id).where(sessions.c.id.in_(ids))).scalars())
                known = [row for row in some if row["session_id"] in there]
                upsert(connection, kernel_uses, known)

    def of_sessions(self, session_ids: Sequence[str]) -> list[KernelUsage]:
        """Return the usage of all their launches, oldest first."""
        found: list[KernelUsage] = []
        with reading(self._engine) as connection:
            for start in range(0, len(session_ids), _CHUNK):
                found += _uses(connection, session_ids[start : start + _CHUNK])
        return found

    def runs(
        self, since: float, until: float, now: float, users: Sequence[str] = (), projects: Sequence[str] = ()
    ) -> Iterator[RunUsage]:
        """Yield the runs in that time, session after session; one that goes on is counted until `now`.

        They are read in pieces, so that a long time needs no more memory than a short one.
        """
        columns = ("id", "name", "array_id", "array_name", "owner", "project", "submitted_at", "started_at", "ended_at")
        query = sa.select(*(sessions.c[name] for name in columns), sessions.c.generation, sessions.c.given, _SIZE)
        query = query.where(sessions.c.submitted_at < until)
        query = query.where(sa.or_(sessions.c.ended_at.is_(None), sessions.c.ended_at >= since))
        query = query.where(sessions.c.owner.in_(users)) if users else query
        query = query.where(sessions.c.project.in_(projects)) if projects else query
        last = ""
        while True:
            with reading(self._engine) as connection:
                piece = query.where(sessions.c.id > last).order_by(sessions.c.id).limit(_CHUNK)
                rows = connection.execute(piece).mappings().all()
                ids = [row["id"] for row in rows]
                slots = _slots(connection, ids)
                uses = _by_session(_uses(connection, ids)) if ids else {}
            for row in rows:
                yield from _runs_of(row, slots[row["id"]], uses.get(row["id"], []), now)
            if len(rows) < _CHUNK:
                return
            last = ids[-1]

    def earlier_runs(self, after: float, session_ids: Sequence[str] | None = None) -> dict[EarlierRun, SessionRun]:
        """Return the runs before the present or last one of these sessions, as far as they were observed.

        Without ids, of all sessions that have not ended or ended later than `after`. Only runs count that ended later.
        """
        is_over = sa.or_(sessions.c.started_at.is_(None), kernel_uses.c.generation != sessions.c.generation)
        query = sa.select(kernel_uses).join(sessions, sessions.c.id == kernel_uses.c.session_id).where(is_over)
        found: dict[EarlierRun, SessionRun] = {}
        with reading(self._engine) as connection:
            if session_ids is None:
                pieces = [query.where(sa.or_(sessions.c.ended_at.is_(None), sessions.c.ended_at > after))]
            else:
                chunks = (session_ids[start : start + _CHUNK] for start in range(0, len(session_ids), _CHUNK))
                pieces = [query.where(sessions.c.id.in_(ids)) for ids in chunks]
            for piece in pieces:
                found |= _earlier_runs(connection, _usages(connection, piece))
        return {key: run for key, run in found.items() if run.ended_at > after}


def _earlier_runs(connection: sa.Connection, uses: Iterable[KernelUsage]) -> dict[EarlierRun, SessionRun]:
    """Return the runs that this usage is of."""
    by_run: dict[EarlierRun, list[KernelUsage]] = {}
    for use in uses:
        by_run.setdefault(EarlierRun(use.session_id, use.generation), []).append(use)
    ids = sorted({run.session_id for run in by_run})
    found: dict[EarlierRun, SessionRun] = {}
    for start in range(0, len(ids), _CHUNK):
        some = ids[start : start + _CHUNK]
        slots = _slots(connection, some)
        query = sa.select(sessions.c.id, sessions.c.owner, sessions.c.resource_group, _SIZE)
        rows = {row["id"]: row for row in connection.execute(query.where(sessions.c.id.in_(some))).mappings()}
        for key, of_run in by_run.items():
            if key.session_id in rows:
                row = rows[key.session_id]
                had = total(_given(row, slots[key.session_id], of_run))
                ended_at = max(use.seen_at for use in of_run)
                found[key] = SessionRun(row["owner"], row["resource_group"], had, of_run[0].began_at, ended_at)
    return found


def _uses(connection: sa.Connection, session_ids: Sequence[str]) -> list[KernelUsage]:
    return _usages(connection, sa.select(kernel_uses).where(kernel_uses.c.session_id.in_(session_ids)))


def _usages(connection: sa.Connection, query: sa.Select[Any]) -> list[KernelUsage]:
    ordered = query.order_by(kernel_uses.c.generation, kernel_uses.c.kernel_id)
    return [KernelUsage(**{name: row[name] for name in _FIELDS}) for row in connection.execute(ordered).mappings()]


def _slots(connection: sa.Connection, session_ids: Sequence[str]) -> dict[str, dict[str, Slots]]:
    """Return by session id its kernels' slots, by kernel id in rank order."""
    found: dict[str, dict[str, Slots]] = {session_id: {} for session_id in session_ids}
    query = sa.select(kernels.c.session_id, kernels.c.id, kernels.c.slots).order_by(kernels.c.rank)
    for row in connection.execute(query.where(kernels.c.session_id.in_(session_ids))) if session_ids else ():
        found[row.session_id][row.id] = Slots(**row.slots)
    return found


def _by_session(uses: Iterable[KernelUsage]) -> dict[str, list[KernelUsage]]:
    found: dict[str, list[KernelUsage]] = {}
    for use in uses:
        found.setdefault(use.session_id, []).append(use)
    return found


def _runs_of(row: sa.RowMapping, slots: Mapping[str, Slots], uses: list[KernelUsage], now: float) -> Iterator[RunUsage]:
    """Yield earlier launches as far as they were observed, then the last one by the session's own times."""
    by_generation: dict[int, list[KernelUsage]] = {}
    for use in uses:
        by_generation.setdefault(use.generation, []).append(use)
    lasting = by_generation.pop(row["generation"], [])
    runs = [
        _run(row, _given(row, slots, of_run), of_run, of_run[0].began_at, max(use.seen_at for use in of_run))
        for of_run in by_generation.values()
    ]
    if row["started_at"] is not None:
        end = now if row["ended_at"] is None else row["ended_at"]
        last = [*slots.values()][: row["given"]]
        runs.append(_run(row, last, lasting, row["started_at"], max(end, row["started_at"])))
    elif lasting:
        # It was queued again, and has not been launched since.
        given = _given(row, slots, lasting)
        runs.append(_run(row, given, lasting, lasting[0].began_at, max(use.seen_at for use in lasting)))
    runs.sort(key=lambda run: run.started_at)
    yield from (replace(run, is_first=number == 0) for number, run in enumerate(runs))


def _given(row: sa.RowMapping, slots: Mapping[str, Slots], uses: Iterable[KernelUsage]) -> list[Slots]:
    """Return the slots of the kernels of an earlier run: of an elastic session as many as were observed then."""
    observed = {use.kernel_id for use in uses}
    is_elastic = "-" in (row["size"] or "")
    return [amounts for kernel_id, amounts in slots.items() if not is_elastic or kernel_id in observed]


def _run(row: sa.RowMapping, slots: list[Slots], uses: list[KernelUsage], began: float, ended: float) -> RunUsage:
    def summed(name: str) -> Any:  # noqa: ANN401 - the field's own type
        known = [amount for use in uses if (amount := getattr(use, name)) is not None]
        return sum(known) if known else None

    return RunUsage(
        session_id=row["id"],
        session_name=row["name"],
        array_id=row["array_id"],
        array_name=row["array_name"],
        user=row["owner"],
        project=row["project"],
        submitted_at=row["submitted_at"],
        started_at=began,
        ended_at=ended,
        kernels=len(slots),
        slots=total(slots),
        cpu_seconds=summed("cpu_seconds"),
        gpu_seconds=summed("gpu_seconds"),
        mem_peak_bytes=summed("mem_peak_bytes"),
    )

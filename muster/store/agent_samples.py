"""What agents had and used over time, in the database: a row for an agent and each step of a span, with sums."""

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import sqlalchemy as sa

from muster.core.model.agent_sample import MEASURES, AgentSample, Amount
from muster.core.usage.over_time import SPANS, Span
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.tables import agent_samples

_PARTS = ("capacity", "allocated", "used")
_SUMS = ("samples", *(f"{measure}_{part}" for measure in MEASURES for part in (*_PARTS, "known")))
_CHUNK = 500
# By the time at which a step begins.
Means = dict[int, dict[str, Amount]]


@dataclass(frozen=True, slots=True)
class _Known:
    """The steps of a span that were read, from `first` to `newest`."""

    first: int
    newest: int
    groups: dict[str, Means]


class AgentSamples:
    """A table of samples. Each is added to one row of every span, so that a week is read as fast as an hour.

    Sums over many agents are remembered: of steps that have ended they stay what they are.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._known: dict[str, _Known] = {}

    def add(self, samples: Iterable[AgentSample]) -> None:
        found = sorted(samples, key=lambda sample: sample.agent_id)
        rows = [_row(sample, span) for sample in found for span in SPANS.values()]
        for start in range(0, len(rows), _CHUNK):
            with writing(self._engine) as connection:
                upsert(connection, agent_samples, rows[start : start + _CHUNK], summed=_SUMS)

    def remove_old(self, now: float) -> None:
        """Remove the samples that no span shows any more."""
        with writing(self._engine) as connection:
            for span in SPANS.values():
                is_old = sa.and_(agent_samples.c.span_s == span.step_s, agent_samples.c.begins_at < now - span.kept_s)
                connection.execute(sa.delete(agent_samples).where(is_old))

    def of_agent(self, span: Span, since: float, agent_id: str) -> Means:
        """Return the agent's means."""
        query = _means(span, since).where(agent_samples.c.agent_id == agent_id)
        with reading(self._engine) as connection:
            return {row["begins_at"]: _amounts(row) for row in connection.execute(query).mappings()}

    def by_group(self, span: Span, since: float) -> dict[str, Means]:
        """Return by resource group the sums of its agents' means."""
        first = int(since // span.step_s) * span.step_s
        with self._lock:
            known = self._known.get(span.name)
            if known is None or first < known.first:
                known = _Known(first, first, {})
            # What is newer than the span was written before somebody set the clock back.
            newest = min(known.newest, first + span.length_s + span.step_s)
            # Samples of a step that has just ended may still come.
            begin = max(first, newest - 2 * span.step_s)
            groups = {
                group: kept
                for group, means in known.groups.items()
                if (kept := {at: amounts for at, amounts in means.items() if first <= at < begin})
            }
            for group, means in self._read_groups(span, begin).items():
                groups[group] = {**groups.get(group, {}), **means}
            newest = max((at for means in groups.values() for at in means), default=first)
            self._known[span.name] = _Known(first, newest, groups)
            return groups

    def _read_groups(self, span: Span, since: float) -> dict[str, Means]:
        group = agent_samples.c.resource_group
        found: dict[str, Means] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(_means(span, since).add_columns(group).group_by(group)).mappings():
                found.setdefault(row["resource_group"], {})[row["begins_at"]] = _amounts(row)
        return found


def _means(span: Span, since: float) -> sa.Select[Any]:
    rows = agent_samples.c
    means = (_mean(measure, part).label(f"{measure}_{part}") for measure in MEASURES for part in _PARTS)
    query = sa.select(rows.begins_at, *means).group_by(rows.begins_at)
    return query.where(rows.span_s == span.step_s, rows.begins_at >= since)


def _row(sample: AgentSample, span: Span) -> dict[str, Any]:
    amounts: dict[str, float | int] = {}
    for measure, amount in sample.amounts.items():
        amounts[f"{measure}_capacity"] = amount.capacity
        amounts[f"{measure}_allocated"] = amount.allocated
        amounts[f"{measure}_used"] = amount.used or 0.0
        amounts[f"{measure}_known"] = int(amount.used is not None)
    return {
        "agent_id": sample.agent_id,
        "span_s": span.step_s,
        "begins_at": int(sample.at // span.step_s) * span.step_s,
        "resource_group": sample.resource_group,
        "samples": 1,
        **amounts,
    }


def _mean(measure: str, part: str) -> sa.ColumnElement[float | None]:
    count = sa.func.nullif(agent_samples.c[f"{measure}_known" if part == "used" else "samples"], 0)
    return sa.func.sum(agent_samples.c[f"{measure}_{part}"] / count)


def _amounts(row: sa.RowMapping) -> dict[str, Amount]:
    return {measure: Amount(*(row[f"{measure}_{part}"] for part in _PARTS)) for measure in MEASURES}

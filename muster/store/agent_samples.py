"""What agents had and used over time, in the database: a row for an agent and each step of a span, with sums."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from muster.core.agent_sample import MEASURES, AgentSample, Amount
from muster.core.use_over_time import SPANS, Span
from muster.store.connection import reading, upsert, writing
from muster.store.tables import agent_samples

_PARTS = ("capacity", "allocated", "used")
_SUMS = ("samples", *(f"{measure}_{part}" for measure in MEASURES for part in (*_PARTS, "known")))
_CHUNK = 500


class AgentSamples:
    """Each sample is added to one row of every span, so that a week is read as fast as an hour."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, samples: Iterable[AgentSample]) -> None:
        found = sorted(samples, key=lambda sample: sample.agent_id)
        rows = [_row(sample, span) for sample in found for span in SPANS.values()]
        summed = {name: agent_samples.c[name] + sa.literal_column(f"excluded.{name}") for name in _SUMS}
        changes = {**summed, "resource_group": sa.literal_column("excluded.resource_group")}
        for start in range(0, len(rows), _CHUNK):
            with writing(self._engine) as connection:
                upsert(connection, agent_samples, rows[start : start + _CHUNK], changes)

    def remove_old(self, now: float) -> None:
        """What no span shows any more."""
        with writing(self._engine) as connection:
            for span in SPANS.values():
                is_old = sa.and_(agent_samples.c.span_s == span.step_s, agent_samples.c.begins_at < now - span.kept_s)
                connection.execute(sa.delete(agent_samples).where(is_old))

    def means(self, span: Span, since: float, *, agent_id: str | None = None) -> dict[int, dict[str, Amount]]:
        """By the time at which a step begins, the sums over all agents, or the one's, of each one's mean."""
        query = _means(span, since)
        query = query if agent_id is None else query.where(agent_samples.c.agent_id == agent_id)
        with reading(self._engine) as connection:
            return {row["begins_at"]: _amounts(row) for row in connection.execute(query).mappings()}

    def means_by_group(self, span: Span, since: float) -> dict[str, dict[int, dict[str, Amount]]]:
        """By resource group, the same of its agents."""
        group = agent_samples.c.resource_group
        found: dict[str, dict[int, dict[str, Amount]]] = {}
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

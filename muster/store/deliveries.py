"""Changes that are still to be sent to callbacks and hooks. A row stays until its target has taken the change."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from muster.core.notify.deliveries import CALLBACK, LONGEST_WAIT_S, Delivery, hook_target, retry_at
from muster.store.database.connection import reading, writing
from muster.store.database.counters import increment_counter, value_of
from muster.store.database.tables import deliveries, events, sessions
from muster.store.sessions.known import SESSION_REVISION

_CURSOR = "couriers"
_AT_ONCE = 500
_CALLBACK_URL = sessions.c.spec["callback"].as_string()
_ANY = sa.select(deliveries.c.event_id).limit(1)
_NEWEST = sa.select(sa.func.max(events.c.id))


class Deliveries:
    """A queue of deliveries. They follow a cursor on the stories in one transaction: none is lost, none comes twice.

    Lines become visible in the order of their numbers, since all that write some first raise the sessions' revision.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def gather(self, hooks: Sequence[str], now: float) -> None:
        """Add deliveries for all changes of state since the last time: to each hook, and to the session's callback."""
        while self._gather_some(hooks, now):
            continue

    def due(self, now: float) -> list[Delivery]:
        """Return some next deliveries of sessions and targets that may be tried now.

        Hooks and the owners of callbacks take turns, each with what waits longest first: one owner's many callbacks
        leave room for others'.
        """
        with reading(self._engine) as connection:
            # First, since it is asked each second, and there is seldom any.
            if connection.execute(_ANY).first() is None:
                return []
            return [Delivery(*row) for row in connection.execute(_due_query(now))]

    def done(self, delivery: Delivery) -> None:
        """Remove a delivery that arrived, or whose target is gone."""
        with writing(self._engine) as connection:
            connection.execute(sa.delete(deliveries).where(_is(delivery)))

    def failed(self, delivery: Delivery, note: str, now: float) -> None:
        """Record a failure: try again later, or give up. The first `note` on a target goes into the session's story."""
        again_at = retry_at(delivery.attempts + 1, now)
        with writing(self._engine) as connection:
            revision = increment_counter(connection, SESSION_REVISION)
            if again_at is None:
                connection.execute(sa.delete(deliveries).where(_is(delivery)))
            else:
                later = {"attempts": delivery.attempts + 1, "next_at": again_at}
                connection.execute(sa.update(deliveries).where(_is(delivery)).values(later))
            self._note_once(connection, delivery, note, now, revision)

    @staticmethod
    def _note_once(connection: sa.Connection, delivery: Delivery, note: str, now: float, revision: int) -> None:
        text = f"{delivery.target} failed: {note}"
        beginning = events.c.reason.startswith(f"{delivery.target} failed: ", autoescape=True)
        noted = sa.select(events.c.id).where(events.c.session_id == delivery.session_id, beginning)
        this = sessions.c.id == delivery.session_id
        state = connection.execute(sa.select(sessions.c.state).where(this)).scalar()
        if state is None or connection.execute(noted.limit(1)).first() is not None:
            return
        connection.execute(sa.update(sessions).where(this).values(revision=revision))
        line = {"session_id": delivery.session_id, "at": now, "from_state": state, "to_state": state, "reason": text}
        connection.execute(sa.insert(events).values(line))

    def _gather_some(self, hooks: Sequence[str], now: float) -> bool:
        """Gather some deliveries; return whether there may be more."""
        with reading(self._engine) as connection:
            newest = connection.execute(_NEWEST).scalar() or 0
            if newest <= value_of(connection, _CURSOR):
                return False
        with writing(self._engine) as connection:
            # Locks the counter: where another gathers at the same time, one of the two finds nothing.
            cursor = increment_counter(connection, _CURSOR, 0, step=0)
            query = (
                sa.select(events.c.id, events.c.session_id, events.c.from_state, events.c.to_state, _CALLBACK_URL)
                .join(sessions, sessions.c.id == events.c.session_id)
                .where(events.c.id > cursor)
                .order_by(events.c.id)
                .limit(_AT_ONCE)
            )
            lines = connection.execute(query).all()
            rows = [
                {"event_id": number, "target": target, "session_id": session_id, "attempts": 0, "next_at": now}
                for number, session_id, from_state, to_state, url in lines
                if from_state != to_state
                for target in [*map(hook_target, hooks), *([CALLBACK] if url else [])]
            ]
            if rows:
                connection.execute(sa.insert(deliveries), rows)
            increment_counter(connection, _CURSOR, lines[-1].id if lines else newest, step=0)
        return len(lines) == _AT_ONCE


def _due_query(now: float) -> sa.Select[Any]:
    first = sa.select(sa.func.min(deliveries.c.event_id).label("event_id"), deliveries.c.target).group_by(
        deliveries.c.session_id, deliveries.c.target
    )
    heads = first.subquery()
    is_head = sa.and_(heads.c.event_id == deliveries.c.event_id, heads.c.target == deliveries.c.target)
    owner = sa.case((deliveries.c.target == CALLBACK, sessions.c.owner), else_="")
    age = (deliveries.c.next_at, deliveries.c.event_id)
    turn = sa.func.row_number().over(partition_by=(deliveries.c.target, owner), order_by=age)
    return (
        sa.select(
            deliveries.c.event_id,
            deliveries.c.target,
            deliveries.c.session_id,
            sessions.c.name,
            sessions.c.owner,
            events.c.at,
            events.c.from_state,
            events.c.to_state,
            events.c.reason,
            deliveries.c.attempts,
            _CALLBACK_URL,
        )
        .join_from(deliveries, heads, is_head)
        .join(events, events.c.id == deliveries.c.event_id)
        .join(sessions, sessions.c.id == deliveries.c.session_id)
        # One that is further ahead than any retry waits since the clock was set back.
        .where(sa.or_(deliveries.c.next_at <= now, deliveries.c.next_at > now + LONGEST_WAIT_S))
        .order_by(turn, *age)
        .limit(_AT_ONCE)
    )


def _is(delivery: Delivery) -> sa.ColumnElement[bool]:
    return sa.and_(deliveries.c.event_id == delivery.event_id, deliveries.c.target == delivery.target)

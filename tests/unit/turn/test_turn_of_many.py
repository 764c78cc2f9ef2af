"""A turn looks at all agents and at all sessions a few times, however many there are of the other."""

from collections.abc import Iterator
from typing import Any

from muster.core.model.session import SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.closures import could_hold
from muster.core.turn import conclusions
from muster.core.turn.ledger import Ledger, TurnRules
from muster.core.turn.touch import touches
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

MANY = 40
# One that looked at all for each of the others would do so at least MANY times.
A_FEW = 20


class Counted(tuple[Any, ...]):
    """Values that count how often somebody goes through all of them."""

    __slots__ = ()
    times = 0

    def __iter__(self) -> Iterator[Any]:
        type(self).times += 1
        return super().__iter__()


class Agents(Counted):
    times = 0


class Sessions(Counted):
    times = 0


def test_what_is_looked_at_grows_with_agents_and_with_sessions_not_with_both():
    names = [f"a{number}" for number in range(MANY)]
    running = [placed_on(make_session(number + 1), name) for number, name in enumerate(names)]
    stopping = [
        placed_on(make_session(MANY + number + 1), name, state=SessionState.TERMINATING)
        for number, name in enumerate(names)
    ]
    agents = Agents(reporting(make_agent(name), spools=[f"gone-{name}"]) for name in names)
    snapshot = Snapshot(agents, (*running, *stopping), NOW)
    snapshot.__dict__["placed"] = Sessions(snapshot.placed)
    conclusions.conclude(snapshot, Ledger(), TurnRules(lost_after_s=300.0, slow_after_s=15.0, could_hold=could_hold))
    touches(snapshot, free=names, launchable=(), done_by={}, unclear={}, resisting=())
    assert Agents.times < A_FEW
    assert Sessions.times < A_FEW

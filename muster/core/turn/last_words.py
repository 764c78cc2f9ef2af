"""The last words that agents keep of sessions that are no longer placed: which to fetch, and which say their usage."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from muster.core.agents.agent import Agent
from muster.core.model.snapshot import Snapshot
from muster.core.turn.answer import AgentAnswer
from muster.core.turn.facts import Fact

# The most sessions whose last words are fetched from one agent in one visit. Later visits fetch the rest.
MOST_FETCHED = 100
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spools:
    """The last words that an agent keeps, by session ids: those to fetch in the next visit, and those to leave there.

    The agent discards all that is neither.
    """

    to_fetch: tuple[str, ...] = ()
    to_leave: tuple[str, ...] = ()


def unfetched_spools(
    agents: Iterable[Agent], snapshot: Snapshot, fetched: Collection[tuple[str, str]]
) -> dict[str, Spools]:
    """Return, by agent id, the last words that have not come yet.

    `fetched` are (agent id, session id) of words that came already. The stop of a placed session fetches its own.
    """
    placed = {session.id for session in snapshot.placed}
    spools = {}
    for agent in agents:
        ids = (id_ for id_ in agent.report.spools if id_ not in placed and _ID.fullmatch(id_))
        missing = tuple(id_ for id_ in ids if (agent.id, id_) not in fetched)
        spools[agent.id] = Spools(missing[:MOST_FETCHED], missing[MOST_FETCHED:])
    return spools


def gone_with_usage(facts: Iterable[Fact], snapshot: Snapshot) -> frozenset[str]:
    """Return the ids of sessions that are no longer placed and whose last words in these answers say their usage."""
    placed = {session.id for session in snapshot.placed}
    return frozenset(
        session_id
        for fact in facts
        if isinstance(fact, AgentAnswer)
        for session_id, outcome in fact.outcomes.items()
        if session_id not in placed and any(words.use is not None for words in outcome.last_words)
    )

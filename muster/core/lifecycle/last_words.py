"""The last words that agents keep of sessions that are no longer placed: which to fetch, and which say their usage."""

from collections.abc import Collection, Iterable

from muster.core.agents.agent import Agent
from muster.core.lifecycle.answer import AgentAnswer
from muster.core.lifecycle.facts import Fact
from muster.core.model.snapshot import Snapshot

# The most sessions whose last words are fetched from one agent in one visit. Later visits fetch the rest.
MOST_FETCHED = 100


def spools_to_fetch(
    agents: Iterable[Agent], snapshot: Snapshot, fetched: Collection[tuple[str, str]]
) -> dict[str, list[str]]:
    """Return, by agent id, the ids of sessions whose last words the next visit may fetch there.

    `fetched` are (agent id, session id) of words that came already. The stop of a placed session fetches its own.
    """
    placed = {session.id for session in snapshot.placed}
    spools = {
        agent.id: [id_ for id_ in agent.report.spools if id_ not in placed and (agent.id, id_) not in fetched]
        for agent in agents
    }
    return {agent_id: ids[:MOST_FETCHED] for agent_id, ids in spools.items()}


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

"""Samples of the usage of running sessions, one after another: `muster top`."""

from collections.abc import Iterator, Sequence

from muster.core.model.session import Session, SessionState
from muster.core.values.errors import NotPossibleInStateError
from muster.service.usage.live import CurrentUsage, UsagePoller
from muster.store.store import Store

_PATIENCE_S = 15.0


def usage_samples(
    store: Store, references: Sequence[str], owner: str | None, interval_s: float, *, once: bool
) -> Iterator[list[CurrentUsage]]:
    """Yield samples, each by session and rank: of the named sessions, or of all that run.

    `owner` limits them to one owner's. With `once` there is one sample, with rates: agents are read twice for it.
    Raises NotFoundError, and NotPossibleInStateError for a session that does not run.
    """
    running = _running(store, references, owner)
    poller = UsagePoller(running, {agent.id: agent for agent in store.agents.all()}, interval_s)
    poller.start()
    try:
        if once:
            yield poller.all(_PATIENCE_S, rounds=2)
            return
        rounds = 0
        while True:
            rounds += 1
            yield poller.all(max(interval_s, _PATIENCE_S) if rounds == 1 else interval_s, rounds=rounds)
    finally:
        poller.stop()


def _running(store: Store, references: Sequence[str], owner: str | None) -> list[Session]:
    if not references:
        return store.search(states=[SessionState.RUNNING], owner=owner)
    named = {session.id: session for reference in references for session in store.find_all(reference, owner)}
    for session in named.values():
        if session.state is not SessionState.RUNNING:
            raise NotPossibleInStateError(f"session {session.name} is {session.state}; only a RUNNING one is in use")
    return list(named.values())

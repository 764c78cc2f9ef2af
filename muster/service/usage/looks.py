"""Looks at what running sessions use, one after another: `muster top`."""

from collections.abc import Iterator, Sequence

from muster.core.model.session import Session, SessionState
from muster.core.values.errors import NotPossibleInStateError
from muster.service.usage.live import KernelNow, LiveUses
from muster.store.store import Store

_PATIENCE_S = 15.0


def looks(
    store: Store, references: Sequence[str], owner: str | None, interval_s: float, *, once: bool
) -> Iterator[list[KernelNow]]:
    """By session and rank; of all sessions of the owner (None: everybody) that run, where none is named.

    With `once` there is one look, which has rates: agents are asked twice for it. Raises NotFoundError, and
    NotPossibleInStateError for one that does not run.
    """
    running = _running(store, references, owner)
    uses = LiveUses(running, {agent.id: agent for agent in store.agents()}, interval_s)
    uses.start()
    try:
        if once:
            yield uses.all(_PATIENCE_S, rounds=2)
            return
        rounds = 0
        while True:
            rounds += 1
            yield uses.all(max(interval_s, _PATIENCE_S) if rounds == 1 else interval_s, rounds=rounds)
    finally:
        uses.stop()


def _running(store: Store, references: Sequence[str], owner: str | None) -> list[Session]:
    if not references:
        return store.search(states=[SessionState.RUNNING], owner=owner)
    named = {session.id: session for reference in references for session in store.find_all(reference, owner)}
    for session in named.values():
        if session.state is not SessionState.RUNNING:
            raise NotPossibleInStateError(f"session {session.name} is {session.state}; only a RUNNING one is in use")
    return list(named.values())

"""The queue's log: a line for each change of a session, also by users, and for each trouble as it comes or goes."""

import logging

from muster.core.agents.agent import Agent, leftovers_line
from muster.service.trouble import Trouble
from muster.store.store import Store

log = logging.getLogger("muster.queue")
_MOST_AT_ONCE = 500


class Journal:
    """A list of what happened since it was made. Records have `fields`, for logs that programs read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written = store.last_event()
        self._agents: dict[str, Trouble] = {}
        self._leftovers: dict[str, Trouble] = {}

    def write_changes(self) -> None:
        """Write the new lines of all stories, each once. Raises StoreUnavailableError."""
        while True:
            changes = self._store.changes.named_after(self._written, _MOST_AT_ONCE)
            for name, change in changes:
                states = change.to_state if change.from_state in {None, change.to_state} else (
                    f"{change.from_state} -> {change.to_state}"
                )  # fmt: skip
                fields = {
                    "session": name,
                    "session_id": change.session_id,
                    "from_state": change.from_state,
                    "to_state": change.to_state,
                    "reason": change.reason,
                }
                log.info("session %s: %s: %s", name, states, change.reason, extra={"fields": fields})
                self._written = change.id
            if len(changes) < _MOST_AT_ONCE:
                return

    def note_problem(self, agent_id: str, problem: str) -> None:
        """Write why an agent did not answer, unless that was said before."""
        self._agents.setdefault(agent_id, Trouble(log, logging.WARNING)).note(f"agent {agent_id}: {problem}")

    def note_report(self, agent: Agent) -> None:
        """Write that an agent answers again, if it did not, and what it cannot remove, unless that was said before."""
        if (trouble := self._agents.pop(agent.id, None)) is not None:
            trouble.over(f"agent {agent.id} answers again")
        if agent.report.leftovers:
            trouble = self._leftovers.setdefault(agent.id, Trouble(log, logging.WARNING))
            trouble.note(f"agent {agent.id} cannot remove {leftovers_line(agent)}")
        elif (trouble := self._leftovers.pop(agent.id, None)) is not None:
            trouble.over(f"agent {agent.id} has removed what it could not")

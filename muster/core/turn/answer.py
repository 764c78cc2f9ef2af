"""An agent's answer in a visit: the one envelope in which answers travel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.contract.folders import FolderState
from muster.contract.outcome import Outcome
from muster.contract.report import Report


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """An agent's report and outcomes, or a problem: one line that says why there are none.

    `visit` is the number of the queue's visit, None outside the queue. `outcomes` holds, by session id, what the agent
    made of each session of its manifest. `folders` holds the state of each folder that it was to make, measure or
    remove. `inventory` comes from the control node's inventory, not from the agent. An agent that was `reached`
    and has a problem failed or refused as a whole, or said what docs/agent-contract.md does not allow. With
    `nothing_begun` it certainly began nothing of its manifest: it refused that before the first step, or no connection
    to it came about.
    """

    agent_id: str
    visit: int | None = None
    report: Report | None = None
    inventory: Mapping[str, Any] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    folders: Sequence[FolderState] = ()
    problem: str = ""
    reached: bool = True
    nothing_begun: bool = False


AnswerHandler = Callable[[AgentAnswer], None]

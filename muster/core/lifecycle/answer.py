"""An agent's answer in a visit: the one envelope in which answers travel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """An agent's report and outcomes, or a problem: one line that says why there are none.

    `visit` is the number of the queue's visit, None outside the queue. `outcomes` holds, by session id, what the agent
    made of each session of its manifest, with that session's `last_words`. `folders` holds an entry for each folder
    that it was to make, measure or remove. An agent that was `reached` and has a problem refused: its module failed as
    a whole.
    """

    agent_id: str
    visit: int | None = None
    report: Mapping[str, Any] | None = None
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    folders: Sequence[Mapping[str, Any]] = ()
    problem: str = ""
    reached: bool = True


AnswerHandler = Callable[[AgentAnswer], None]

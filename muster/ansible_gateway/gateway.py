"""What the control node asks of the agents: observe and converge. Each agent's answer is told as soon as it comes."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.ansible_gateway.playbook import HostAnswer, private_directory, run_playbook

_CONVERGE_SLACK_S = 120


@dataclass(frozen=True, slots=True)
class Answer:
    """What one agent said, or one line that says why it said nothing.

    `outcomes` by session id, each with its `last_words`. An agent that was `reached` but has no report refused: its
    module failed as a whole.
    """

    agent_id: str
    report: Mapping[str, Any] | None = None
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""
    reached: bool = True


Answered = Callable[[Answer], None]


class AnsibleGateway:
    """Runs the playbooks on one inventory. `answered` is called in the calling thread and must be quick."""

    def __init__(self, inventory: Path, cluster: str) -> None:
        self._inventory = inventory
        self._cluster = cluster

    def observe(self, agent_ids: Collection[str], answered: Answered, without: Collection[str] = ()) -> None:
        """These agents, or with none given all that the inventory names `without` some. Raises AnsibleFailedError."""
        limit = ",".join(agent_ids) if agent_ids else ",".join(["all", *(f"!{agent_id}" for agent_id in without)])
        with private_directory() as directory:
            variables = {"muster_cluster": self._cluster}
            run_playbook("observe", self._inventory, variables, directory, lambda a: answered(_answer(a)), limit)

    def converge(self, manifests: Mapping[str, Mapping[str, Any]], answered: Answered) -> None:
        """One play over the agents that have a manifest. Raises AnsibleFailedError."""
        with private_directory() as directory:
            manifest_dir = directory / "manifests"
            manifest_dir.mkdir(mode=0o700)
            for agent_id, manifest in manifests.items():
                (manifest_dir / f"{agent_id}.json").write_text(json.dumps(manifest), encoding="utf-8")
            longest = max(m["start_timeout_s"] + m["stop_grace_s"] for m in manifests.values())
            variables = {"manifest_dir": str(manifest_dir), "converge_timeout_s": longest + _CONVERGE_SLACK_S}
            limit = ",".join(sorted(manifests))
            run_playbook("converge", self._inventory, variables, directory, lambda a: answered(_answer(a)), limit)

    def folders(
        self,
        agent_ids: Collection[str],
        variables: Mapping[str, Any],
        answered: Callable[[HostAnswer], None],
    ) -> None:
        """Makes, measures or removes folders with an owner on these agents: `variables` of playbooks/folders.yml.

        Raises AnsibleFailedError.
        """
        with private_directory() as directory:
            limit = ",".join(sorted(agent_ids))
            run_playbook("folders", self._inventory, variables, directory, answered, limit)


def _answer(answer: HostAnswer) -> Answer:
    if answer.unreachable:
        return Answer(answer.host, problem=answer.unreachable, reached=False)
    if answer.failed:
        return Answer(answer.host, problem=answer.failed)
    words = answer.result.get("last_words", ())
    outcomes = {
        outcome["id"]: {**outcome, "last_words": [word for word in words if word["session_id"] == outcome["id"]]}
        for outcome in answer.result.get("sessions", ())
    }
    return Answer(answer.host, answer.result["report"], outcomes)

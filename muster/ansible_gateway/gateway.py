"""What the control node asks of the agents: observe and converge. Each agent's answer is passed on as it comes."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from muster.ansible_gateway.playbook import private_directory, run_playbook
from muster.core.lifecycle.answer import AgentAnswer, AnswerHandler

_CONVERGE_SLACK_S = 120


class AnsibleGateway:
    """Runs the playbooks on one inventory. `on_answer` is called in the calling thread and must be quick."""

    def __init__(self, inventory: Path, cluster: str) -> None:
        self._inventory = inventory
        self._cluster = cluster

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None:
        """Observe these agents, or with none given all that the inventory names `without` some.

        Raises AnsibleFailedError.
        """
        limit = ",".join(agent_ids) if agent_ids else ",".join(["all", *(f"!{agent_id}" for agent_id in without)])
        with private_directory() as directory:
            variables = {"muster_cluster": self._cluster}
            run_playbook("observe", self._inventory, variables, directory, _visited, on_answer, limit)

    def converge(self, manifests: Mapping[str, Mapping[str, Any]], on_answer: AnswerHandler) -> None:
        """Converge the agents that have a manifest, in one play. Raises AnsibleFailedError."""
        with private_directory() as directory:
            manifest_dir = directory / "manifests"
            manifest_dir.mkdir(mode=0o700)
            for agent_id, manifest in manifests.items():
                (manifest_dir / f"{agent_id}.json").write_text(json.dumps(manifest), encoding="utf-8")
            longest = max(m["start_timeout_s"] + m["stop_grace_s"] for m in manifests.values())
            variables = {"manifest_dir": str(manifest_dir), "converge_timeout_s": longest + _CONVERGE_SLACK_S}
            limit = ",".join(sorted(manifests))
            run_playbook("converge", self._inventory, variables, directory, _visited, on_answer, limit)

    def folders(self, agent_ids: Collection[str], variables: Mapping[str, Any], on_answer: AnswerHandler) -> None:
        """Make, measure or remove folders with an owner on these agents: `variables` of playbooks/folders.yml.

        Raises AnsibleFailedError.
        """
        with private_directory() as directory:
            limit = ",".join(sorted(agent_ids))
            run_playbook("folders", self._inventory, variables, directory, _with_folders, on_answer, limit)


def _visited(agent_id: str, result: Mapping[str, Any]) -> AgentAnswer:
    words = result.get("last_words", ())
    outcomes = {
        outcome["id"]: {**outcome, "last_words": [word for word in words if word["session_id"] == outcome["id"]]}
        for outcome in result.get("sessions", ())
    }
    return AgentAnswer(agent_id, report=result["report"], outcomes=outcomes)


def _with_folders(agent_id: str, result: Mapping[str, Any]) -> AgentAnswer:
    return AgentAnswer(agent_id, folders=result["folders"])

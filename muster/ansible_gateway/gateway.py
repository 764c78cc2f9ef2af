"""What the control node asks of the agents: observe and converge."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.ansible_gateway.playbook import private_directory, run_playbook


@dataclass(frozen=True, slots=True)
class Observation:
    """Reports by agent id; for each agent that gave none, one line that says why."""

    reports: Mapping[str, dict[str, Any]]
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Convergence:
    """What agents made of their manifests.

    `outcomes` by session id, then agent id (each with its `last_words`); `refused` holds agents whose module failed,
    `unreachable` those that never got the manifest.
    """

    reports: Mapping[str, dict[str, Any]]
    outcomes: Mapping[str, dict[str, dict[str, Any]]]
    refused: Mapping[str, str] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)


class AnsibleGateway:
    """Runs the playbooks on one inventory."""

    def __init__(self, inventory: Path, cluster: str) -> None:
        self._inventory = inventory
        self._cluster = cluster

    def observe(self, agent_ids: Collection[str] = ()) -> Observation:
        """Of these agents, or of all that the inventory names."""
        with private_directory() as directory:
            variables = {"muster_cluster": self._cluster}
            answers = run_playbook("observe", self._inventory, variables, directory, ",".join(sorted(agent_ids)))
        reports = {host: result["report"] for host, result in answers.results.items()}
        return Observation(reports, answers.problems())

    def converge(self, manifests: Mapping[str, Mapping[str, Any]]) -> Convergence:
        """One play over the agents that have a manifest."""
        with private_directory() as directory:
            manifest_dir = directory / "manifests"
            manifest_dir.mkdir(mode=0o700)
            for agent_id, manifest in manifests.items():
                (manifest_dir / f"{agent_id}.json").write_text(json.dumps(manifest), encoding="utf-8")
            variables = {"manifest_dir": str(manifest_dir)}
            answers = run_playbook("converge", self._inventory, variables, directory, ",".join(sorted(manifests)))
        outcomes: dict[str, dict[str, dict[str, Any]]] = {}
        for agent_id, result in answers.results.items():
            for outcome in result["sessions"]:
                words = [word for word in result["last_words"] if word["session_id"] == outcome["id"]]
                outcomes.setdefault(outcome["id"], {})[agent_id] = {**outcome, "last_words": words}
        return Convergence(
            reports={agent_id: result["report"] for agent_id, result in answers.results.items()},
            outcomes=outcomes,
            refused={host: str(result.get("msg", result)) for host, result in answers.failed.items()},
            unreachable=dict(answers.unreachable),
        )

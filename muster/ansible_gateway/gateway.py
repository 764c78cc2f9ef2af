"""The control node's requests to agents: observe and converge. Each agent's answer is passed on as it comes."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from muster.ansible_gateway.layout import INVENTORY
from muster.ansible_gateway.play_order import PlayOrder
from muster.ansible_gateway.playbook import Inventory, ReadResult, run_playbook
from muster.ansible_gateway.plays_ahead import NOTHING_AHEAD, PlaysAhead
from muster.contract.folders import folders_from_agent
from muster.contract.manifest import FolderEntry, Manifest
from muster.contract.outcome import outcomes_from_agent
from muster.contract.report import report_from_agent
from muster.contract.values import ContractError
from muster.core.launch.manifest import VISIT_SLACK_S
from muster.core.turn.answer import AgentAnswer, AnswerHandler
from muster.private_directories import private_directory
from muster.settings import Settings

# Linux allows 128 KiB.
_MOST_OF_AN_ARGUMENT = 1 << 16


def inventory_of(settings: Settings) -> Inventory:
    """Return the inventory that the settings name, with what decrypts it."""
    return Inventory(settings.inventory, settings.vault_password_files)


class AnsibleGateway:
    """A runner of playbooks on one inventory. It calls `on_answer` in the calling thread, or while that waits.

    It must be quick. `ahead` says of how many playbooks a play is kept that has started already, and waits for hosts.
    """

    def __init__(
        self,
        inventory: Inventory,
        cluster: str,
        folders_root: Path | None = None,
        ahead: Mapping[str, int] = NOTHING_AHEAD,
    ) -> None:
        """Take the inventory, the cluster's name, the data root whose directories agents report, and plays ahead."""
        self._inventory = inventory
        self._cluster = cluster
        self._folders_root = folders_root
        self._ahead = PlaysAhead(inventory, ahead)

    def close(self) -> None:
        """End the plays that nobody has needed."""
        self._ahead.close()

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None:
        """Observe these agents, or with none given all that the inventory names `without` some.

        Raises AnsibleFailedError.
        """
        limit = ",".join(agent_ids) if agent_ids else ",".join(["all", *(f"!{agent_id}" for agent_id in without)])
        variables = {"muster_cluster": self._cluster}
        if self._folders_root is not None:
            variables["muster_folders_root"] = str(self._folders_root)
        self._visit("observe", limit, lambda _: variables, read_visit, on_answer)

    def converge(self, manifests: Mapping[str, Manifest], on_answer: AnswerHandler) -> None:
        """Converge the agents that have a manifest, in one play. Raises AnsibleFailedError."""
        longest = max(m.start_timeout_s + m.stop_grace_s for m in manifests.values())

        def written(directory: Path) -> Mapping[str, Any]:
            manifest_dir = directory / "manifests"
            manifest_dir.mkdir(mode=0o700)
            for agent_id, manifest in manifests.items():
                (manifest_dir / f"{agent_id}.json").write_text(manifest.model_dump_json(), encoding="utf-8")
            return {"manifest_dir": str(manifest_dir), "converge_timeout_s": longest + VISIT_SLACK_S}

        limit = ",".join(sorted(manifests))
        self._visit("converge", limit, written, partial(read_visit, manifests=manifests), on_answer)

    def folders(
        self,
        agent_ids: Collection[str],
        root: Path,
        state: str,
        folders: Sequence[FolderEntry],
        on_answer: AnswerHandler,
    ) -> None:
        """Make, measure or remove folders with an owner on these agents: `state` is that of `agent_folders`.

        Raises AnsibleFailedError.
        """
        entries = [folder.model_dump() for folder in folders]
        variables = {"folders_root": str(root), "folders_state": state, "folders_entries": entries}
        with private_directory() as directory:
            limit = ",".join(sorted(agent_ids))
            read = partial(_read_folders, folders=folders)
            run_playbook("folders", self._inventory, variables, directory, read, on_answer, limit)

    def _visit(
        self,
        name: str,
        limit: str,
        variables_in: Callable[[Path], Mapping[str, Any]],
        read_result: ReadResult,
        on_answer: AnswerHandler,
    ) -> None:
        """Run a playbook: a play of it that waits, or else a new one. Its variables name files in its directory."""
        waiting = self._ahead.take(name)
        try:
            if waiting is not None:
                order = PlayOrder(_limit_in(waiting.directory, limit), variables_in(waiting.directory))
                if waiting.run(order, read_result, on_answer):
                    return
            with private_directory() as directory:
                variables = variables_in(directory)
                named = _limit_in(directory, limit)
                run_playbook(name, self._inventory, variables, directory, read_result, on_answer, named)
        finally:
            self._ahead.refill()


def _limit_in(directory: Path, limit: str) -> str:
    """Return the limit, or where it is too long for an argument, one that names a file with it."""
    if len(limit) < _MOST_OF_AN_ARGUMENT:
        return limit
    (directory / "limit").write_text("\n".join(limit.split(",")), encoding="utf-8")
    return f"@{directory / 'limit'}"


def read_visit(
    agent_id: str, result: Mapping[str, Any], failure: str = "", manifests: Mapping[str, Manifest] | None = None
) -> AgentAnswer:
    """Return what an agent said to its manifest, or of itself; a problem where the contract does not allow it.

    An agent whose module ended with a `failure` may have said what became of sessions before that.
    """
    manifest = None if manifests is None else manifests[agent_id]
    try:
        if failure:
            return _failed_visit(agent_id, result, failure, manifest)
        report = report_from_agent(result.get("report"))
        outcomes = {} if manifest is None else outcomes_from_agent(result, manifest)
    except ContractError as error:
        return _refusal(agent_id, error)
    return AgentAnswer(agent_id, report=report, inventory=_as_json(result.get(INVENTORY, {})), outcomes=outcomes)


def _as_json(value: Any) -> Any:  # noqa: ANN401 - whatever the inventory says
    """Return the value with texts for the numbers of YAML that JSON, and so a database, does not have."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {name: _as_json(part) for name, part in value.items()}
        case list():
            return [_as_json(part) for part in value]
    return value


def _failed_visit(agent_id: str, result: Mapping[str, Any], failure: str, manifest: Manifest | None) -> AgentAnswer:
    if manifest is None or "sessions" not in result:
        return AgentAnswer(agent_id, problem=failure, nothing_begun=result.get("nothing_begun") is True)
    outcomes = outcomes_from_agent(result, manifest, is_complete=False)
    return AgentAnswer(agent_id, problem=failure, outcomes=outcomes)


def _read_folders(
    agent_id: str, result: Mapping[str, Any], failure: str, folders: Sequence[FolderEntry]
) -> AgentAnswer:
    if failure:
        return AgentAnswer(agent_id, problem=failure)
    try:
        return AgentAnswer(agent_id, folders=folders_from_agent(result, [folder.path for folder in folders]))
    except ContractError as error:
        return _refusal(agent_id, error)


def _refusal(agent_id: str, error: ContractError) -> AgentAnswer:
    return AgentAnswer(agent_id, problem=f"its answer is refused: {error}")

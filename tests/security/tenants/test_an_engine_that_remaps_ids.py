"""An engine with `userns-remap`: it has all the ids that sessions need, or gets none, and people see why."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.cli.doctor import _agent
from muster.contract.report import RemappedIdsReport, Report
from muster.core.agents.agent import agent_from_report
from muster.core.agents.remapped_ids import LEAST_IDS
from muster.core.model.folders import Folder
from muster.core.turn.answer import AgentAnswer
from muster.settings import Settings
from tests.modules.agent_code import id_mapping
from tests.strategies.agents import make_agent

ENOUGH = RemappedIdsReport(uids=LEAST_IDS, gids=LEAST_IDS, mounts=True)
SHORT = [
    (ENOUGH.model_copy(update={"uids": 65_536}), "65536 uids"),
    (ENOUGH.model_copy(update={"gids": 65_536}), "65536 gids"),
    (ENOUGH.model_copy(update={"uids": 0, "gids": 0}), "0 uids and 0 gids"),
    (ENOUGH.model_copy(update={"mounts": False}), "Linux 5.12"),
]


def report(ids: RemappedIdsReport | None) -> Report:
    found = make_agent().report
    assert found is not None
    return found.model_copy(update={"docker": found.docker.model_copy(update={"remapped_ids": ids})})


@pytest.mark.parametrize(("ids", "words"), SHORT)
def test_an_engine_that_lacks_something_is_the_agents_problem(ids: RemappedIdsReport, words: str) -> None:
    agent = agent_from_report("one", report(ids), {}, 0.0)
    assert not agent.takes_sessions
    assert words in agent.problem


@pytest.mark.parametrize("ids", [None, ENOUGH])
def test_one_that_remaps_none_and_one_that_has_them_all_take_sessions(ids: RemappedIdsReport | None) -> None:
    assert agent_from_report("one", report(ids), {}, 0.0).problem == ""


@pytest.mark.parametrize(("ids", "words"), SHORT)
def test_the_doctor_names_it_with_its_remedy(ids: RemappedIdsReport, words: str) -> None:
    answer = replace(AgentAnswer("one"), report=report(ids))
    findings = {finding.check: finding for finding in _agent(answer, Settings(), is_alone=True)}
    found = findings["agent one: remapped ids"]
    assert not found.ok
    assert words in f"{found.found} {found.remedy}"
    assert found.remedy


@pytest.mark.parametrize("digits", ["00000000", "ffffffff"])
def test_folders_groups_are_among_the_ids_that_an_engine_must_have(digits: str) -> None:
    folder = Folder(id=f"{digits}-0000-0000-0000-000000000000", name="data", owner="ada", created_at=0.0)
    assert folder.number < LEAST_IDS


def info(root: str = "/var/lib/docker/1000000.2000000", options: tuple[str, ...] = ("name=userns",)) -> dict[str, Any]:
    return {"DockerRootDir": root, "SecurityOptions": list(options)}


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    (tmp_path / "subuid").write_text(
        "ada:100000:65536\n# a remark\nremapped:3000000:10\nremapped:1000000:5\n\xff:1:2:3\n", encoding="latin-1"
    )
    (tmp_path / "subgid").write_text("remapped:2000000:2147483648\n", encoding="utf-8")
    return tmp_path


def mapping(ids: Path, said: dict[str, Any]) -> Any:
    return id_mapping.id_mapping(said, ids / "subuid", ids / "subgid")


def test_an_engine_says_which_ids_of_the_host_its_containers_have(ids: Path) -> None:
    found = mapping(ids, info(options=("name=seccomp,profile=default", "name=userns")))
    assert (found.uid_count, found.gid_count) == (15, 2_147_483_648)
    assert [found.host_uid(uid) for uid in (0, 4, 5, 14)] == [1_000_000, 1_000_004, 3_000_000, 3_000_009]
    assert found.host_gid(1 << 30) == 2_000_000 + (1 << 30)


def test_an_id_without_one_on_the_host_is_refused(ids: Path) -> None:
    with pytest.raises(id_mapping.UnmappedIdError, match="none for uid 15"):
        mapping(ids, info()).host_uid(15)


def test_an_engine_that_does_not_remap_has_the_hosts_ids(ids: Path) -> None:
    assert mapping(ids, info(options=("name=seccomp,profile=default",))) is None
    assert mapping(ids, info() | {"SecurityOptions": None}) is None


@pytest.mark.parametrize("root", ["/var/lib/docker", "/var/lib/docker/7.7", "/data/x.y"])
def test_where_the_ids_cannot_be_found_there_are_none(ids: Path, root: str) -> None:
    found = mapping(ids, info(root))
    assert (found.uid_count, found.gid_count) == (0, 0)

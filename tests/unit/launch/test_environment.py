"""What each kernel finds in its environment, and that docs/environment.md says so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.launch.environment import environment, overridden_variables
from muster.core.model.session import Session
from tests.properties import examples
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.specs import specs

ROOT = Path(__file__).parents[3]
DISTRIBUTED = {
    *("WORLD_SIZE", "WORLD_RANK", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"),
    *("JAX_COORDINATOR_ADDRESS", "PDSH_RCMD_TYPE"),
}


def environments(session: Session, master_port: int = 12345) -> dict[str, dict[str, str]]:
    return {kernel.name: environment(session, kernel, master_port) for kernel in session.kernels}


def running(*agent_ids: str, **values: Any) -> Session:
    return placed_on(make_session(name="train", **values), *(agent_ids or ("a1",)))


def test_a_lone_kernel_does_not_look_like_a_distributed_job():
    session = running()
    assert environments(session) == {
        "main1": {
            "BACKENDAI_SESSION_ID": session.id,
            "BACKENDAI_KERNEL_ID": session.id,
            "BACKENDAI_SESSION_NAME": "train",
            "BACKENDAI_CLUSTER_SIZE": "1",
            "BACKENDAI_CLUSTER_MODE": "single-node",
            "BACKENDAI_CLUSTER_HOST": "main1",
            "BACKENDAI_CLUSTER_HOSTS": "main1",
            "BACKENDAI_CLUSTER_ROLE": "main",
            "BACKENDAI_CLUSTER_IDX": "1",
            "BACKENDAI_CLUSTER_REPLICAS": "main:1",
            "BACKENDAI_CLUSTER_LOCAL_RANK": "0",
            "MUSTER_RESTARTS": "0",
            "OMP_NUM_THREADS": "1",
        }
    }


def test_a_session_of_an_array_knows_which_one_it_is():
    session = running(array="0-9:3%2", array_id="1a2b", array_index=6)
    variables = environments(session)["main1"]
    assert {name: value for name, value in variables.items() if name.startswith("MUSTER_ARRAY")} == {
        "MUSTER_ARRAY_ID": "1a2b",
        "MUSTER_ARRAY_INDEX": "6",
        "MUSTER_ARRAY_SIZE": "4",
    }


def test_a_gang_of_three_on_one_agent():
    session = running(cluster_size=3)
    assert environments(session)["sub2"] == {
        "BACKENDAI_SESSION_ID": session.id,
        "BACKENDAI_KERNEL_ID": session.kernels[2].id,
        "BACKENDAI_SESSION_NAME": "train",
        "BACKENDAI_CLUSTER_SIZE": "3",
        "BACKENDAI_CLUSTER_MODE": "single-node",
        "BACKENDAI_CLUSTER_HOST": "sub2",
        "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2",
        "BACKENDAI_CLUSTER_ROLE": "sub",
        "BACKENDAI_CLUSTER_IDX": "2",
        "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:2",
        "BACKENDAI_CLUSTER_LOCAL_RANK": "2",
        "MUSTER_RESTARTS": "0",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": "3",
        "WORLD_RANK": "2",
        "RANK": "2",
        "LOCAL_RANK": "2",
        "MASTER_ADDR": "main1",
        "MASTER_PORT": "12345",
        "TF_CONFIG": '{"cluster": {"worker": ["main1:12345", "sub1:12345", "sub2:12345"]}, '
        '"task": {"type": "worker", "index": 2}}',
        "JAX_COORDINATOR_ADDRESS": "main1:12345",
        "PDSH_RCMD_TYPE": "ssh",
    }
    assert environments(session)["main1"]["BACKENDAI_KERNEL_ID"] == session.id
    assert [env["RANK"] for env in environments(session).values()] == ["0", "1", "2"]


def test_roles_count_from_one_and_ranks_go_on():
    found = environments(running(roles=["ps:2"], cluster_size=4))
    assert list(found) == ["main1", "ps1", "ps2", "sub1"]
    assert {env["BACKENDAI_CLUSTER_REPLICAS"] for env in found.values()} == {"main:1,ps:2,sub:1"}
    picked = {name: (env["BACKENDAI_CLUSTER_ROLE"], env["BACKENDAI_CLUSTER_IDX"]) for name, env in found.items()}
    assert picked == {"main1": ("main", "1"), "ps1": ("ps", "1"), "ps2": ("ps", "2"), "sub1": ("sub", "1")}
    ranks = {name: (env["RANK"], env["BACKENDAI_CLUSTER_LOCAL_RANK"]) for name, env in found.items()}
    assert ranks == {"main1": ("0", "0"), "ps1": ("1", "1"), "ps2": ("2", "2"), "sub1": ("3", "3")}


def test_sub10_comes_after_sub9():
    hosts = environments(running(cluster_size=13))["main1"]["BACKENDAI_CLUSTER_HOSTS"].split(",")
    assert hosts == ["main1", *(f"sub{number}" for number in range(1, 13))]


def test_local_rank_counts_on_each_agent_by_itself():
    found = environments(running("a1", "a2", cluster_size=5))
    assert {name: env["LOCAL_RANK"] for name, env in found.items()} == {
        "main1": "0",
        "sub1": "0",
        "sub2": "1",
        "sub3": "1",
        "sub4": "2",
    }
    assert {env["BACKENDAI_CLUSTER_MODE"] for env in found.values()} == {"multi-node"}


def test_the_mode_is_the_placed_one_not_the_requested_one():
    assert environments(running(cluster_mode="multi-node"))["main1"]["BACKENDAI_CLUSTER_MODE"] == "single-node"


def test_a_users_variables_replace_what_frameworks_read_and_nothing_else():
    env = {"MASTER_PORT": "29500", "OMP_NUM_THREADS": "7", "BACKENDAI_CLUSTER_SIZE": "9", "MUSTER_RESTARTS": "8"}
    session = running(cluster_size=2, env={**env, "BATCH_SIZE": "64"})
    for found in environments(session).values():
        assert (found["MASTER_PORT"], found["OMP_NUM_THREADS"], found["BATCH_SIZE"]) == ("29500", "7", "64")
        assert (found["BACKENDAI_CLUSTER_SIZE"], found["MUSTER_RESTARTS"]) == ("2", "0")
    assert overridden_variables(session) == ["MASTER_PORT", "OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    ("values", "threads"),
    [
        ({"cpu": 8}, "8"),
        ({"cpu": 0.5}, "1"),
        ({"cpu": 8, "tasks": 3}, "2"),
        ({"cpu": 8, "tasks_per_kernel": 4, "cluster_size": 2}, "2"),
        ({"cpu": 2.5, "cluster_size": 2}, "2"),
    ],
)
def test_openmp_starts_as_many_threads_as_a_process_has_cores(values, threads):
    assert {env["OMP_NUM_THREADS"] for env in environments(running(**values)).values()} == {threads}


def test_a_session_that_was_queued_again_knows_how_often():
    session = running(requeues=2, slurm_env=True)
    assert environments(session)["main1"]["MUSTER_RESTARTS"] == "2"
    assert environments(session)["main1"]["SLURM_RESTART_COUNT"] == "2"


def test_a_users_variables_stand_where_ours_are_left_out():
    found = environments(running(env={"RANK": "99"}))["main1"]
    assert found["RANK"] == "99"


def test_distributed_variables_can_be_left_out():
    for env in environments(running(cluster_size=3, distributed_env=False)).values():
        assert env.keys() & DISTRIBUTED == set()
        assert env["BACKENDAI_CLUSTER_SIZE"] == "3"


def test_the_port_is_the_sites():
    env = environments(running(cluster_size=2), master_port=29500)["sub1"]
    assert env["MASTER_PORT"] == "29500"
    assert json.loads(env["TF_CONFIG"])["cluster"]["worker"] == ["main1:29500", "sub1:29500"]


@examples(60)
@given(specs(), st.sampled_from((("a1",), ("a1", "a2"))))
def test_every_value_is_text_and_the_hosts_are_one_for_each_rank(spec, agent_ids):
    session = placed_on(make_session(**spec.model_dump(mode="json", exclude={"name"})), *agent_ids)
    for kernel in session.kernels:
        env = environment(session, kernel, 12345)
        assert all(isinstance(value, str) for value in env.values())
        assert env["BACKENDAI_CLUSTER_HOSTS"].split(",")[kernel.rank] == kernel.name


def documented() -> dict[str, str]:
    """Return each variable and the sessions that have it, from the page's tables."""
    found = {}
    for line in (ROOT / "docs" / "environment.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        for name in re.findall(r"`([A-Z][A-Z_]+)`", cells[0]) if line.startswith("|") else ():
            found[name] = cells[1]
    return found


@pytest.mark.parametrize(("size", "sessions"), [(1, {"all"}), (3, {"all", "two kernels or more"})])
def test_the_page_documents_each_variable_that_is_set_and_no_other(size, sessions):
    (env, *_) = environments(running(cluster_size=size)).values()
    assert set(env) == {name for name, where in documented().items() if where in sessions}

"""Slurm's variables, and the files that get a command's output."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.launch.environment import environment
from muster.core.launch.slurm import job_number, tasks_of_kernels
from muster.core.launch.startup_files import startup_files
from muster.core.model.session import Session
from muster.core.spec.errors import validated
from muster.core.spec.mounts import HOME
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import SpecError
from tests.properties import cheap, examples
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import new_id

PAGE = Path(__file__).parents[3] / "docs" / "slurm.md"


def running(**values: Any) -> Session:
    return placed_on(make_session(**{"name": "train", "slurm_env": True, **values}), "a1")


def slurm_variables(session: Session, rank: int = 0) -> dict[str, str]:
    found = environment(session, session.kernels[rank], 12345)
    return {name: value for name, value in found.items() if name.startswith("SLURM")}


def test_a_gang_is_a_job_of_as_many_nodes():
    session = running(cluster_size=3, tasks=7, cpu=8, mem="2G", gpu=2, project="vision", resource_group="gpu")
    assert slurm_variables(session, 1) == {
        "SLURM_JOB_ID": str(job_number(session.id)),
        "SLURM_JOBID": str(job_number(session.id)),
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_USER": session.owner,
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_ACCOUNT": "vision",
        "SLURM_JOB_NODELIST": "main1,sub1,sub2",
        "SLURM_NODELIST": "main1,sub1,sub2",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NNODES": "3",
        "SLURM_NTASKS": "7",
        "SLURM_NPROCS": "7",
        "SLURM_TASKS_PER_NODE": "3,2(x2)",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_CPUS_ON_NODE": "8",
        "SLURM_JOB_CPUS_PER_NODE": "8(x3)",
        "SLURM_MEM_PER_NODE": "2048",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURMD_NODENAME": "sub1",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "0",
        "SLURM_RESTART_COUNT": "0",
        "SLURM_STEP_NODELIST": "main1,sub1,sub2",
        "SLURM_STEP_NUM_NODES": "3",
    }


def test_mpi_starts_its_processes_by_ssh_and_the_user_may_say_otherwise():
    session = running(cluster_size=2, env={"HYDRA_BOOTSTRAP": "fork"})
    found = environment(session, session.kernels[1], 12345)
    names = ("OMPI_MCA_plm", "PRTE_MCA_plm", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP")
    assert [found[name] for name in names] == ["rsh", "ssh", "fork", "ssh"]


def test_a_session_of_an_array_is_a_task_of_an_array_job():
    session = running(array="2-8:3", array_id=new_id(7), array_index=5)
    found = slurm_variables(session)
    assert {name: found[name] for name in found if "ARRAY" in name} == {
        "SLURM_ARRAY_JOB_ID": str(job_number(new_id(7))),
        "SLURM_ARRAY_TASK_ID": "5",
        "SLURM_ARRAY_TASK_COUNT": "3",
        "SLURM_ARRAY_TASK_MIN": "2",
        "SLURM_ARRAY_TASK_MAX": "8",
    }


def test_no_other_session_has_them():
    assert slurm_variables(running(slurm_env=False, tasks=4)) == {}


@cheap
@given(st.uuids())
def test_a_jobs_number_is_one_that_frameworks_calculate_with(identity):
    assert 0 < job_number(str(identity)) < 1 << 31


@examples(100)
@given(st.integers(1, 12), st.integers(0, 50))
def test_every_task_is_in_one_kernel_and_none_has_more_than_one_more(kernels, more):
    found = tasks_of_kernels(running(cluster_size=kernels, tasks=kernels + more))
    assert sum(found) == kernels + more
    assert 0 <= found[0] - found[-1] <= 1
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("kernels", [2, 3])
def test_tasks_of_each_kernel_follow_however_many_it_was_given(kernels):
    session = running(cluster_size=kernels, tasks_per_kernel=4, slurm_env=True)
    assert tasks_of_kernels(session) == [4] * kernels
    found = slurm_variables(session)
    assert (found["SLURM_NTASKS"], found["SLURM_NTASKS_PER_NODE"]) == (str(4 * kernels), "4")


def test_the_page_documents_each_variable_that_is_set():
    documented = set(re.findall(r"`(SLURM[A-Z_]+)`", PAGE.read_text(encoding="utf-8")))
    session = running(cluster_size=2, gpu=1, array="0-1", array_id=new_id(7), array_index=1)
    assert slurm_variables(session).keys() <= documented


def test_fewer_tasks_than_kernels_are_refused():
    with pytest.raises(SpecError, match="tasks: 2 are less than the session's 3 containers"):
        validated(SessionSpec, {"cluster_size": 3, "tasks": 2})


# Files of a command's output


def files(session: Session, rank: int = 0) -> dict[str, str]:
    found = startup_files(session, session.kernels[rank], {})
    return {name: entry.content for name, entry in found.items() if name in {"output", "error"}}


def logging(**values: Any) -> Session:
    return running(**{"command": "true", "mounts": ["logs"], "slurm_env": False, **values})


def test_letters_stand_for_what_they_stand_for_in_slurm():
    session = logging(
        output="logs/%x/%A_%4a.%N.%n.%u.%%", error="logs/%j", array="3,7", array_id=new_id(9), array_index=7
    )
    assert files(session) == {
        "output": f"{HOME}/logs/train/{new_id(9)}_0007.main1.0.{session.owner}.%",
        "error": f"{HOME}/logs/{session.id}",
    }


def test_with_slurms_variables_the_number_of_a_job_is_theirs():
    session = logging(output="logs/%j-%a", slurm_env=True)
    assert files(session) == {"output": f"{HOME}/logs/{job_number(session.id)}-0"}


def test_a_path_begins_where_the_command_does():
    session = logging(output="%j.log", workdir="/data/project", mounts=["project:/data/project"])
    assert files(session) == {"output": f"/data/project/{session.id}.log"}


def test_only_kernels_that_run_the_command_have_files():
    session = logging(output="logs/%N", cluster_size=2)
    assert (files(session, 0), files(session, 1)) == ({"output": f"{HOME}/logs/main1"}, {})
    session = logging(output="logs/%N", cluster_size=2, run_on="all")
    assert files(session, 1) == {"output": f"{HOME}/logs/sub1"}


@cheap
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_no_owners_name_leads_out_of_the_folder(owner):
    session = placed_on(
        make_session(name="train", owner=owner, command="true", mounts=["logs"], output="logs/%u.x"), "a1"
    )
    assert files(session)["output"].startswith(f"{HOME}/logs/")
    assert files(session)["output"].count("/") == 4


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"output": "logs/../x"}, "output: 'logs/../x' is no file"),
        ({"output": "logs/"}, "output: 'logs/' is no file"),
        ({"output": "logs/%q"}, "output: 'logs/%q' holds an unknown pattern"),
        ({"error": "logs/%"}, "error: 'logs/%' holds an unknown pattern"),
        ({"output": "elsewhere/x"}, "output: 'elsewhere/x' is in no data folder"),
        ({"output": "logs/x", "mounts": ["logs:ro"]}, "output: 'logs/x' is in no data folder"),
        ({"output": "logs"}, "output: 'logs' is in no data folder"),
        ({"output": "logs/x", "command": None}, "output: an interactive session has no command"),
    ],
)
def test_a_file_that_cannot_be_is_refused(values, problem):
    with pytest.raises(SpecError, match=re.escape(problem)):
        validated(SessionSpec, {"command": "true", "mounts": ["logs"], **values})

"""Job scripts for Slurm, `muster run`, and files that get a command's output."""

import os
import signal
import subprocess
import time
from pathlib import Path

import docker
import pytest

from muster.core.launch.slurm import job_number
from muster.core.spec.mounts import HOME
from tests.control_node import SCRIPTS, SMALL, ControlNode
from tests.waiting import eventually

SCRIPT = """#!/bin/sh
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --mem=64M
#SBATCH --qos=high
#SBATCH -o logs/%x-%j-%a.out
export GREETING="it's
here"
cd /tmp
echo "batch $SLURM_JOB_ID $SLURM_JOB_NUM_NODES $SLURM_NTASKS $SLURM_PROCID of $SLURM_JOB_NODELIST"
scontrol show hostnames "$SLURM_JOB_NODELIST"
srun -l sh -c 'echo "$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $RANK $WORLD_SIZE $PWD $GREETING"' | sort
srun --mpi=none -n 1 -c 2 sh -c 'echo "one of $SLURM_NTASKS on $(hostname)"; exit 3'
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scripts")
    (directory / "train.sh").write_text(SCRIPT)
    return directory


@pytest.fixture(scope="module")
def logs(node: ControlNode) -> Path:
    directory = node.folders / "logs"
    directory.mkdir()
    os.chown(directory, 1000, 1000)
    return directory


@pytest.fixture(scope="module")
def gang(node: ControlNode) -> str:
    return node.start("--cluster-size", "3")


def test_a_script_for_slurm_runs_as_it_is(node, scripts, logs):
    done = node.run(
        "submit", str(scripts / "train.sh"), "-v", "logs", "--cpu", "0.05", "--shm", "16M", "--wait", check=False
    )
    assert done.code == 3, done.err
    assert "without their effect in Slurm (docs/slurm.md): --qos" in done.err
    session = node.show("train")
    number = job_number(session["id"])
    expected = [
        f"batch {number} 2 4 0 of main1,sub1",
        *("main1", "sub1"),
        *("main1/0: 0 0 0 4 0 4 /tmp it's", "main1/0: here", "main1/1: 1 1 0 4 1 4 /tmp it's", "main1/1: here"),
        *("sub1/2: 2 0 1 4 2 4 /tmp it's", "sub1/2: here", "sub1/3: 3 1 1 4 3 4 /tmp it's", "sub1/3: here"),
        *("srun: without effect here: --mpi", "one of 1 on main1"),
    ]
    assert sorted(node.run("logs", "train").out.splitlines()) == sorted(expected)
    (file,) = logs.glob("train-*")
    assert file.name == f"train-{number}-0.out"
    assert file.read_text().splitlines() == node.run("logs", "train").out.splitlines()
    assert (file.stat().st_uid, file.stat().st_gid) == (1000, 1000)


def test_a_command_runs_on_every_kernel_with_labelled_output_and_the_highest_exit_code(node, gang):
    done = node.run("run", gang, "--", "sh", "-c", 'echo "hi $RANK"; echo no >&2; exit $RANK', check=False)
    assert done.code == 2
    assert sorted(done.out.splitlines()) == ["main1: hi 0", "sub1: hi 1", "sub2: hi 2"]
    assert sorted(done.err.splitlines()) == ["main1: no", "sub1: no", "sub2: no"]


def test_processes_are_divided_among_the_kernels(node, gang):
    done = node.run("run", gang, "-n", "5", "--", "sh", "-c", 'echo "$LOCAL_RANK of $WORLD_SIZE"')
    assert sorted(done.out.splitlines()) == [
        *("main1/0: 0 of 5", "main1/1: 1 of 5", "sub1/2: 0 of 5", "sub1/3: 1 of 5", "sub2/4: 0 of 5"),
    ]
    first = node.run("run", gang, "-n", "2", "--", "hostname")
    assert sorted(first.out.splitlines()) == ["main1: main1", "sub1: sub1"]


def test_muster_run_within_the_session_does_the_same(node, gang):
    done = node.exec(f"{gang}:sub1", "muster-run", "echo", "a  b", "it's", "", "$x")
    assert sorted(done.out.splitlines()) == [f"{name}: a  b it's  $x" for name in ("main1", "sub1", "sub2")]
    assert node.exec(gang, "sh", "-c", "command -v srun || echo none").out == "none\n"


def test_a_command_that_is_interrupted_ends_on_every_kernel(node, gang):
    command = [SCRIPTS / "muster", "run", gang, "--", "sh", "-c", "echo up; exec sleep 7531"]
    with subprocess.Popen(command, env=node.environment, stdout=subprocess.PIPE, text=True) as runner:
        assert sorted(runner.stdout.readline() for _ in range(3)) == ["main1: up\n", "sub1: up\n", "sub2: up\n"]
        runner.send_signal(signal.SIGINT)
        runner.wait(120)
    containers = docker.from_env().containers.list(filters={"label": f"muster.session-name={gang}"})
    eventually(lambda: not any("7531" in str(container.top()) for container in containers))


def test_a_gang_of_one_kernel_can_run_several_processes(node):
    name = node.start("--tasks", "3", "--slurm-env")
    done = node.run("run", name, "--", "sh", "-c", "echo $SLURM_PROCID $RANK $WORLD_SIZE $MASTER_ADDR")
    assert sorted(done.out.splitlines()) == [f"main1/{rank}: {rank} {rank} 3 main1" for rank in range(3)]


def test_output_and_errors_are_appended_to_files_as_well(node, logs):
    (logs / "both.main1.err").write_text("before\n")
    (logs / "both.main1.err").chmod(0o666)
    command = "echo bad >&2; sleep 1000 & echo end"
    name = node.submit(
        *("--cluster-size", "2", "--on", "all", "--name", "both", "-c", command, *SMALL),
        *("-v", "logs", "--output", "logs/new/%x.%N", "--error", "logs/%x.%N.err"),
    )
    assert node.reaches(name, "TERMINATED")["exit_code"] == 0
    for kernel in ("main1", "sub1"):
        assert (logs / "new" / f"both.{kernel}").read_text() == "end\n"
        assert sorted(node.run("logs", f"{name}:{kernel}").out.splitlines()) == ["bad", "end"]
    assert (logs / "both.main1.err").read_text() == "before\nbad\n"
    assert (logs / "both.sub1.err").read_text() == "bad\n"


def test_a_command_with_a_file_gets_its_signals_and_its_exit_code_counts(node, logs):
    trap = "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    name = node.submit(*SMALL, "-v", "logs", "-o", "logs/ends", "-c", trap)
    node.reaches(name, "RUNNING")
    while "ready" not in node.run("logs", name).out:
        time.sleep(0.1)
    node.run("terminate", name, "--wait")
    assert (logs / "ends").read_text() == "ready\nasked\n"


def test_a_file_that_cannot_be_written_ends_the_kernel_with_one_clear_line(node, logs):
    (logs / "taken").mkdir(mode=0o700)
    name = node.submit(*SMALL, "-v", "logs", "-o", "logs/taken/x", "-c", "echo never")
    assert node.reaches(name, "TERMINATED")["exit_code"] == 125
    log = node.run("logs", name).out
    assert f"muster: {HOME}/logs/taken/x for the command's output cannot be written" in log
    assert "never" not in log


def test_a_link_out_of_the_folder_leads_nowhere_on_the_host(node, logs):
    """The file is opened in the container and by its user, so a link is followed there: not on the host."""
    victim = node.directory / "victim"
    victim.write_text("safe")
    victim.chmod(0o666)
    (logs / "link").symlink_to(victim)
    name = node.submit(*SMALL, "-v", "logs", "-o", "logs/link", "-c", "echo overwritten")
    assert node.reaches(name, "TERMINATED")["exit_code"] == 125
    assert victim.read_text() == "safe"

"""An elastic session on the real engine: every kernel knows what the session was given, and the gang meets at main1."""

import json

import pytest

from tests.control_node import SMALL, ControlNode
from tests.e2e.conftest import NewNode

# What torchrun's rendezvous does: each worker joins at MASTER_ADDR, and the first waits for WORLD_SIZE of them.
MEETING = """
cd /tmp
echo "$TF_CONFIG" > tf_config
if [ "$RANK" != 0 ]; then
  until ssh "$MASTER_ADDR" "echo $RANK of $WORLD_SIZE >> /tmp/joined"; do sleep 0.2; done
  exit 0
fi
until [ "$(cat joined 2>/dev/null | wc -l)" = $((WORLD_SIZE - 1)) ]; do sleep 0.2; done
echo "0 of $WORLD_SIZE" >> joined
sort joined
cut -d' ' -f1 /run/muster/hostfile | tr '\\n' ' '
echo "$BACKENDAI_CLUSTER_SIZE $BACKENDAI_CLUSTER_REPLICAS $SLURM_JOB_NUM_NODES"
cat tf_config
"""


@pytest.fixture(scope="module")
def elastic_node(new_node: NewNode) -> ControlNode:
    made = new_node()
    made.start_daemon()
    return made


def a_third(node: ControlNode) -> tuple[str, ...]:
    """Return flags for a kernel of which three fit, and no fourth."""
    return ("--cpu", "0.05", "--mem", str(node.memory() * 2 // 7), "--shm", "16M")


def test_the_kernels_that_were_given_meet(elastic_node):
    node = elastic_node
    name = node.submit(
        *a_third(node), "--cluster-size", "2-5", "--name", "meet", "--on", "all", "--slurm-env", "-c", MEETING
    )
    ended = node.reaches(name, "TERMINATED")
    assert (ended["result"], ended["size"], len(ended["kernels"])) == ("SUCCESS", "3 of 2-5", 3)
    *lines, tf_config = node.run("logs", f"{name}:main1").out.splitlines()
    assert lines == ["0 of 3", "1 of 3", "2 of 3", "main1 sub1 sub2 3 main:1,sub:2 3"]
    assert [worker.split(":")[0] for worker in json.loads(tf_config)["cluster"]["worker"]] == ["main1", "sub1", "sub2"]


def test_a_script_for_slurm_with_a_range_of_nodes_runs_its_tasks_on_those_it_was_given(elastic_node, tmp_path):
    node = elastic_node
    script = tmp_path / "range.sh"
    lines = (
        "#SBATCH -N 2-5 --ntasks-per-node=2",
        "srun sh -c 'echo $SLURM_NODEID $SLURM_PROCID of $SLURM_NTASKS' | sort",
    )
    script.write_text("\n".join(("#!/bin/sh", *lines, "")))
    done = node.run("submit", str(script), *a_third(node), "--wait")
    assert "without their effect" not in done.err
    assert node.show("range")["size"] == "3 of 2-5"
    said = node.run("logs", "range").out.splitlines()
    assert said == ["0 0 of 6", "0 1 of 6", "1 2 of 6", "1 3 of 6", "2 4 of 6", "2 5 of 6"]


def test_it_gets_what_others_leave_and_another_size_the_next_time(elastic_node):
    node = elastic_node
    each = a_third(node)
    other = node.submit(*each)
    node.reaches(other, "RUNNING")
    first = node.submit(*each, "--cluster-size", "2-5", "--name", "first")
    assert node.reaches(first, "RUNNING")["size"] == "2 of 2-5"
    assert "runs with 2 of 2-5 containers" in node.run("why", first).out
    node.run("terminate", other, first)
    node.reaches(first, "TERMINATED")
    node.reaches(other, "TERMINATED")
    again = node.submit(*SMALL, "--cluster-size", "2-5")
    assert node.reaches(again, "RUNNING")["size"] == "5 of 2-5"
    assert node.exec(f"{again}:sub4", "sh", "-c", "echo $WORLD_SIZE").out == "5\n"
    node.run("terminate", again)

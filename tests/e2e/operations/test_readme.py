"""The README's tour, run as it is written."""

import re
import shlex

import pytest

from tests.control_node import ROOT, SCRIPTS, SMALL, ControlNode
from tests.readme_tours import go_through, root_tour
from tests.running.forked_on_path import muster_on_path


@pytest.fixture(scope="module")
def toured(new_node) -> ControlNode:
    node = new_node()
    (node.directory / "images.yml").write_text("images:\n  - {name: default, reference: 'muster/default:latest'}\n")
    node.start_daemon()
    return node


def test_the_tour_goes_as_written(toured, tmp_path):
    """With the test's settings in place of /etc/muster."""
    script = root_tour().replace("ansible-playbook ", f"ansible-playbook -e muster_config={toured.config} ")
    answers = (
        "rank 1 of 3, master main1:12345",
        "hello from main1\nhello from sub1\n",
        "main1\nsub1\n",
        "giant is PENDING: it asks for more than",
        "exit code 2",
        "\n17\n# Muster\n",
        "ssh -N -L 127.0.0.1:8000:127.0.0.1:8000 ",
        "the same\n",
        "ok    agent localhost: Docker",
    )
    environment = {**toured.environment, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    with muster_on_path(tmp_path) as programs:
        done = go_through(script, answers, directory=ROOT, programs=f"{programs}:{SCRIPTS}", environment=environment)
    assert "muster: cluster_size: '0' is too small; write 1 or more" in done.stderr


def test_the_example_for_many_hosts_starts_its_command_in_every_kernel(toured):
    """The flags as written, but for those that ask for more than this machine has."""
    (example,) = re.findall(
        r"^muster (submit --cluster-mode multi-node .*)$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    flags, _, command = example.partition(" -- ")
    assert command == "python train.py"
    flags = flags.replace("--cluster-size 16", "--cluster-size 3").replace("--gpu 1 ", "")
    toured.run(*shlex.split(flags), *SMALL, "--name", "many", "--", "echo rank $RANK of $WORLD_SIZE")
    said = [toured.run("logs", f"many:{kernel}").out for kernel in ("main1", "sub1", "sub2")]
    assert said == ["rank 0 of 3\n", "rank 1 of 3\n", "rank 2 of 3\n"]

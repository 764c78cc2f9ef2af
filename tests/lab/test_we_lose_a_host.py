"""A host that is gone for good. The last of the lab's tests: it takes one of the hosts."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.control_node import NOTHING
from tests.lab.bring_up import INVENTORY, provision
from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)


def test_a_host_that_is_gone_for_good_is_forgotten_with_all_that_was_on_it(lab: Lab, new_lab_node) -> None:
    node: LabControlNode = new_lab_node(observe_interval_s=3, lost_after_s=10)
    node.notice_cuts_soon()
    node.start_daemon()
    gang = node.start("--cluster-size", "3", "--cluster-mode", "multi-node", "--mem", "14G")
    again = node.start("--cluster-size", "3", "--mem", "2G", "--requeue")
    assert "lab-3" in node.show(gang)["agents"]
    lab.remove("lab-3")
    take_out(node.directory / "inventory.yml", "lab-3")
    ended = node.reaches(gang, "TERMINATED")
    assert ended["reason"] == "agent lab-3 was lost"
    eventually(lambda: agents(node), lambda seen: "lab-3" not in seen)
    assert node.show(again)["state"] == "RUNNING"

    take_out(INVENTORY, "lab-3")
    done = provision("--tags", "overlay_network", "-e", "overlay_network_prune=true", stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stdout
    assert "lab-3" not in lab.run("lab-1", "docker", "node", "ls").out
    eventually(
        lambda: lab.run("lab-1", "docker", "network", "ls", "--quiet", "--filter", "driver=overlay").out,
        lambda networks: len(networks.split()) <= 1,  # the engine's own, which is called ingress
    )
    node.run("terminate", again, "--wait")
    eventually(
        lambda: [lab.left_on(name, node.cluster) for name in ("lab-1", "lab-2")],
        lambda seen: seen == [NOTHING, NOTHING],
    )


def agents(node: LabControlNode) -> dict[str, str]:
    return {agent["id"]: agent["state"] for agent in node.run("agents", "--json").json()}


def take_out(inventory: Path, host: str) -> None:
    content = yaml.safe_load(inventory.read_text())
    del content["all"]["children"]["agents"]["children"]["default"]["hosts"][host]
    inventory.write_text(yaml.safe_dump(content))

"""What people do with sessions whose kernels lie on several hosts."""

import json
import shlex

import pytest

from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab
from tests.servers.opened_app import get, opened
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)
KERNELS = ("main1", "sub1", "sub2")
GANG = ("--cluster-size", "3", "--cluster-mode", "multi-node")
# Each host can promise 24 GiB.
ONE_TO_A_HOST = (*GANG, "--mem", "14G")
BESIDE = (*GANG, "--mem", "9G")
SERVES = """
import http.server, os
address = ("127.0.0.1", int(os.environ["MUSTER_APP_PORT"]))
http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.fixture(scope="module")
def node(new_lab_node) -> LabControlNode:
    served = {"command": f"cd /etc && exec python3 -c {shlex.quote(SERVES)}", "port": 18080, "url": "/hostname"}
    node = new_lab_node(apps={"names": served}, observe_interval_s=5)
    node.start_daemon()
    return node


@pytest.fixture(scope="module")
def gang(node: LabControlNode):
    """Yield three kernels on three hosts, with a folder of their owner's."""
    node.run("folder", "create", "results", "--owner", "ada")
    name = node.start(*ONE_TO_A_HOST, "--owner", "ada", "-v", "results", "--app", "names")
    assert len(node.show(name)["agents"]) == 3
    yield name
    node.run("terminate", name, "--wait")


def test_files_go_to_kernels_on_any_host_and_come_back(node: LabControlNode, gang: str, tmp_path) -> None:
    for kernel in KERNELS:
        (tmp_path / kernel).write_text(f"for {kernel}")
        node.run("cp", str(tmp_path / kernel), f"{gang}:{kernel}:given")
    assert node.exec(gang, "ssh", "sub2", "cat", "given").out == "for sub2"
    node.run("cp", f"{gang}:sub1:given", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "for sub1"


def test_top_looks_at_all_hosts(node: LabControlNode, gang: str) -> None:
    seen = node.run("top", gang, "--once", "--json").out
    assert all(host in seen for host in ("lab-1", "lab-2", "lab-3"))
    assert all(json.dumps(kernel) in seen for kernel in KERNELS)


def test_an_apps_health_is_checked_and_it_is_opened_on_the_host_of_main1(node: LabControlNode, gang: str) -> None:
    eventually(lambda: [app["state"] for app in node.show(gang)["apps"]], lambda states: states == ["healthy"])
    with opened(node, gang, "names", "--port", "18090") as url:
        assert get(url) == (200, "main1\n")


def test_a_folder_is_at_the_same_path_on_every_host_and_goes_from_all(lab: Lab, node: LabControlNode) -> None:
    node.run("folder", "create", "scratch", "--owner", "ada")
    name = node.start(*BESIDE, "--owner", "ada", "-v", "scratch:/data")
    for kernel in KERNELS:
        node.exec(f"{name}:{kernel}", "touch", "/data/here")
    path = node.run("folder", "show", "scratch", "--owner", "ada", "--json").json()["path"]
    listed = [lab.run(host.name, "ls", f"/srv/muster/folders/{path}").out for host in lab.hosts]
    assert listed == ["here\n"] * 3
    refused = node.run("folder", "rm", "scratch", "--owner", "ada", "--yes", check=False)
    assert (refused.code != 0, name in refused.err) == (True, True)
    node.run("terminate", name, "--wait")
    node.run("folder", "rm", "scratch", "--owner", "ada", "--yes")
    gone = [lab.run(host.name, "test", "-e", f"/srv/muster/folders/{path}", check=False).code for host in lab.hosts]
    assert gone == [1, 1, 1]


def test_a_restart_leaves_every_kernel_on_its_host(node: LabControlNode, gang: str) -> None:
    before = node.show(gang)
    node.run("restart", gang, "--wait")
    after = node.show(gang)
    for what in ("id", "agent"):
        assert [kernel[what] for kernel in after["kernels"]] == [kernel[what] for kernel in before["kernels"]]
    containers = [[kernel["container_id"] for kernel in session["kernels"]] for session in (before, after)]
    assert set(containers[0]).isdisjoint(containers[1])
    assert node.exec(gang, "ssh", "sub1", "ssh", "sub2", "hostname").out == "sub2\n"


def test_an_image_made_of_a_kernel_is_on_all_hosts_at_once(lab: Lab, node: LabControlNode) -> None:
    name = node.start()
    node.exec(name, "sh", "-c", "echo mine > installed")
    node.run("commit", name, "lab-made:1", "--sync")
    node.run("terminate", name, "--wait")
    made = node.start(*BESIDE, "--image", "lab-made:1")
    for kernel in KERNELS:
        assert node.exec(f"{made}:{kernel}", "cat", "installed").out == "mine\n"
    node.run("terminate", made, "--wait")
    node.run("images", "rm", "lab-made:1")
    for host in lab.hosts:
        assert "lab-made" not in lab.run(host.name, "docker", "image", "ls").out


def test_the_usage_of_kernels_is_recorded_on_every_host(node: LabControlNode) -> None:
    burn = "import time\nwhile time.process_time() < 2: pass"
    name = node.submit(*BESIDE, "--cpu", "0.5", "--on", "all", "-c", f"python3 -c {shlex.quote(burn)}")
    used = [use["cpu_seconds"] for use in node.reaches(name, "TERMINATED")["use"]]
    assert len(used) == 3
    assert all(seconds >= 2 for seconds in used)

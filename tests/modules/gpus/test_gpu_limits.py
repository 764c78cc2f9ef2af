"""The driver's own limits of shares through visits of the agent: killed ones, repeated ones, and a session's end."""

import json
import os
import subprocess
import sys

import pytest

from tests.modules.agent_code import ROOT, account_files
from tests.modules.cluster_on_host import RUN, USER, desired, killed_when, session
from tests.native.fake_driver import FakeDriver

GIB = 1 << 30


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Return a driver with limits of its own, which programs of this host find."""
    made = FakeDriver(tmp_path, tmp_path / "state", tmp_path / "visible")
    words = [f"OUT={made.directory}", f"STATE={made.state}", f"VISIBLE={made.visible}"]
    subprocess.run(["make", "-s", "-C", ROOT / "tests/fake_driver", *words], check=True)
    made.init(gpus=1)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(made.directory))
    return made


@pytest.fixture
def gang(cluster, driver):
    """Return a session with 2 GiB of a GPU, whose image needs no probe any more."""
    (uuid,) = driver.uuids()
    entry = session(gpus=[{"uuid": uuid, "amount": 500, "capacity": 2000, "mem_bytes": 2 * GIB, "compute": 250}])
    image = cluster.engine.image(entry["kernels"][0]["image"])
    cluster.paths.state.mkdir(parents=True)
    account_files.image_facts(cluster.engine, cluster.name, image["Id"], USER["home"], set())
    return entry


def visit(cluster, *sessions):
    """Carry out a manifest in a process of its own, which finds the driver."""
    manifest = json.dumps(cluster.manifest(*sessions))
    subprocess.run([sys.executable, "-c", RUN], input=manifest, text=True, check=True, cwd=ROOT, env=dict(os.environ))


def limits(cluster, driver):
    """Return the limits in bytes by container."""
    names = {entry["Id"]: name for name, entry in cluster.containers().items()}
    return {names[limit["group"].rpartition("/")[2]]: limit["hard_bytes"] for limit in driver.status()["limits"]}


def test_a_limit_that_a_killed_visit_did_not_set_is_set_by_the_next_and_ends_with_the_session(cluster, driver, gang):
    (name,) = [f"{gang['network']['name']}-{kernel['name']}" for kernel in gang["kernels"]]
    assert killed_when(lambda: "running" in cluster.states().values(), cluster.manifest(gang))
    assert limits(cluster, driver) == {}
    visit(cluster, desired(gang, "keep"))
    assert limits(cluster, driver) == {name: 2 * GIB}
    visit(cluster, desired(gang, "keep"))
    assert limits(cluster, driver) == {name: 2 * GIB}
    visit(cluster, desired(gang, "stop"))
    assert driver.status()["limits"] == []


def test_a_launch_that_is_repeated_after_a_killed_visit_sets_the_limit(cluster, driver, gang):
    assert killed_when(lambda: "running" in cluster.states().values(), cluster.manifest(gang))
    visit(cluster, gang)
    assert list(limits(cluster, driver).values()) == [2 * GIB]


def test_a_container_that_was_started_anew_gets_its_limit_back(cluster, driver, gang):
    visit(cluster, gang)
    (name,) = limits(cluster, driver)
    subprocess.run(["docker", "restart", "--time", "0", name], check=True, capture_output=True)
    assert limits(cluster, driver) == {}
    visit(cluster, desired(gang, "keep"))
    assert limits(cluster, driver) == {name: 2 * GIB}

"""The inventory plugin as `ansible-inventory` shows it, on a store without agents that answer."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleParserError
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import inventory_loader

from muster.core.agents.agent import AgentState
from muster.core.model.session import SessionState
from muster.store.store import Store
from tests.command_line import write_settings
from tests.running.forked_ansible import ROOT, ansible
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW
from tests.unit.running_sessions import running_session

REMOTE = {
    "connection": "ssh",
    "address": "192.0.2.7",
    "user": "admin",
    "ssh_args": "-o ForwardAgent=no",
    "private_key_file": "/etc/muster/key",
}


@pytest.fixture
def store(tmp_path: Path, empty_database: Path) -> Store:
    (tmp_path / "state").mkdir(mode=0o700)
    shutil.copy(empty_database, tmp_path / "state" / "muster.db")
    write_settings(tmp_path, {})
    return Store(f"sqlite:///{tmp_path / 'state' / 'muster.db'}")


def inventory_file(directory: Path, **options: Any) -> Path:
    path = directory / "cluster.muster.yml"
    values = {"plugin": "muster_cluster", "config": str(directory / "muster.yml"), **options}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def parsed(directory: Path, **options: Any) -> InventoryData:
    """Return the inventory as Ansible holds it."""
    inventory_loader.add_directory(str(ROOT / "plugins" / "inventory"))
    inventory = InventoryData()
    path = str(inventory_file(directory, **options))
    plugin = inventory_loader.get("muster_cluster")
    assert plugin.verify_file(path)
    plugin.parse(inventory, DataLoader(), path)
    return inventory


def groups_of(inventory: dict[str, Any], host: str) -> set[str]:
    return {name for name, group in inventory.items() if host in group.get("hosts", ())}


def test_agents_and_running_kernels_are_hosts_in_their_groups(store, tmp_path):
    drained = make_agent("a2", resource_group="big-mem", cpus=4, **REMOTE)
    store.agents.save([make_agent("a1"), replace(drained, state=AgentState.UNREACHABLE, unreachable_since=NOW)])
    store.agents.drain("a2", "new disks")
    session = running_session(1, "a1", "a2", name="train", cluster_size=3, cpu=1)
    store.add([session, make_session(2, name="waits")])
    path = inventory_file(
        tmp_path,
        keyed_groups=[{"key": "muster_state | lower", "prefix": "state"}],
        groups={"ours": "muster_owner == 'ada'"},
    )
    done = ansible("ansible-inventory", "-i", path, "--list")
    # Ansible marks strings in which it will not look for templates.
    inventory = json.loads(done.stdout, object_hook=lambda value: value.get("__ansible_unsafe", value))
    hosts = inventory["_meta"]["hostvars"]
    assert set(hosts) == {"a1", "a2", "train-main1", "train-sub1", "train-sub2"}

    assert groups_of(inventory, "a1") == {"agents", "resource_group_default", "state_alive"}
    assert groups_of(inventory, "a2") == {"agents", "resource_group_big_mem", "state_unreachable"}
    assert hosts["a1"]["ansible_connection"] == "local"
    assert (
        hosts["a2"].items()
        >= {
            "ansible_connection": "ssh",
            "ansible_host": "192.0.2.7",
            "ansible_user": "admin",
            "ansible_ssh_common_args": "-o ForwardAgent=no",
            "ansible_ssh_private_key_file": "/etc/muster/key",
            "muster_state": "UNREACHABLE",
            "muster_drain_reason": "new disks",
            "muster_resource_group": "big-mem",
        }.items()
    )
    assert "ansible_port" not in hosts["a2"]
    assert (hosts["a2"]["muster_capacity"]["cpu"], hosts["a2"]["muster_free"]["cpu"]) == (4000, 3000)

    common = {"kernels", "session_train", "ours"}
    assert groups_of(inventory, "train-main1") == common | {"role_main", "session_train_main"}
    assert groups_of(inventory, "train-sub2") == common | {"role_sub", "session_train_sub"}
    sub = hosts["train-sub1"]
    assert (sub["ansible_connection"], sub["ansible_user"], sub["muster_agent"]) == ("ssh", "work", "a2")
    config = Path(sub["ansible_ssh_common_args"].removeprefix("-F "))
    assert f"Host sub1 {sub['ansible_host']}\n" in config.read_text(encoding="utf-8")


def test_hosts_are_the_requested_ones(store, tmp_path):
    store.agents.save([make_agent("a1")])
    store.add([running_session(1, "a1", name="train")])
    assert set(parsed(tmp_path, agents=False).hosts) == {"train-main1"}
    assert set(parsed(tmp_path, kernels=False).hosts) == {"a1"}


def test_sessions_share_no_group_and_no_name(store, tmp_path):
    store.agents.save([make_agent("a1")])
    sessions = [
        running_session(1, "a1", name="a.b"),
        running_session(2, "a1", name="a-b"),
        running_session(3, "a1", name="x", roles=[{"name": "y-z", "replicas": 1}]),
        running_session(4, "a1", name="x-y", roles=[{"name": "z", "replicas": 1}]),
        running_session(5, "a1", name="lone"),
        running_session(6, "a1", name="lone_main"),
    ]
    store.add(sessions)
    inventory = parsed(tmp_path, agents=False)
    kernels = sum(len(session.kernels) for session in sessions)
    assert len(inventory.hosts) == kernels
    for name, group in inventory.groups.items():
        if name.startswith("session_"):
            assert len({host.vars["muster_session_id"] for host in group.hosts}) == 1, name
    # Ansible shares a connection between hosts whose ansible_host is the same.
    assert len({host.vars["ansible_host"] for host in inventory.hosts.values()}) == kernels


def test_a_session_that_is_ending_is_no_host(store, tmp_path):
    store.agents.save([make_agent("a1")])
    store.add([replace(running_session(1, "a1"), state=SessionState.TERMINATING)])
    assert set(parsed(tmp_path).hosts) == {"a1"}


@pytest.mark.usefixtures("store")
def test_settings_that_do_not_exist_are_one_clear_line(tmp_path):
    with pytest.raises(AnsibleParserError, match=r"nosuch\.yml does not exist; run playbooks/site\.yml"):
        parsed(tmp_path, config=str(tmp_path / "nosuch.yml"))


@pytest.mark.usefixtures("store")
def test_a_python_without_muster_is_one_clear_line(tmp_path):
    """As with an ansible of the distribution: Muster's package is hidden from this one."""
    (tmp_path / "muster.py").write_text("raise ImportError\n", encoding="utf-8")
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-inventory", "-i", inventory_file(tmp_path), "--list"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Ansible's Python has no Muster" in done.stderr


def test_ansible_doc_explains_the_plugin():
    done = ansible("ansible-doc", "-t", "inventory", "--json", "muster_cluster")
    options = json.loads(done.stdout)["muster_cluster"]["doc"]["options"]
    assert {"config", "agents", "kernels", "keyed_groups"} <= options.keys()

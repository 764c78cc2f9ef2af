"""What an inventory says of agents: by way of the playbooks' variables, checked before anything is done to a host."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running.forked_ansible import LOCAL, ROOT, ansible

EXAMPLE = ROOT / "inventory/example-cluster"
ATTRIBUTES = "{{ agent_attributes | combine({'errors': agent_attributes | muster_attribute_errors}) }}"


def attributes_of_agents(inventory: Path) -> dict[str, dict[str, Any]]:
    """Return by host the attributes that observing it adds to its report, and what is wrong in them."""
    message = f'msg="{ATTRIBUTES}"'
    where = ("-i", inventory, "--playbook-dir", ROOT / "playbooks")
    done = ansible("ansible", "agents", *where, "-m", "ansible.builtin.debug", "-a", message)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = re.findall(r"^(\S+) \| SUCCESS => (\{.*?^\})", done.stdout, flags=re.MULTILINE | re.DOTALL)
    return {host: json.loads(answer)["msg"] for host, answer in answers}


def test_labels_racks_and_units_of_the_inventory_reach_the_agents_report():
    agents = attributes_of_agents(EXAMPLE)
    assert len(agents) == 6
    assert [attributes["errors"] for attributes in agents.values()] == [[]] * 6
    gpu, node = agents["gpu-01.example.org"], agents["node-03.example.org"]
    assert gpu["labels"] == {"gpu": "a100", "disk": "ssd"}
    assert (gpu["rack"], gpu["zone"], gpu["units_per_gpu"]) == ("r2", "hall-1", {"A100": 4, "default": 2})
    assert (node["labels"], node["rack"], node["units_per_gpu"]) == ({}, "r2", 0)
    fgpu = {
        "fgpu_provider": "shim",
        "fgpu_compute": "fair",
        "fgpu_choice": "policy",
        "fgpu_over_cap": "report",
        "fgpu_devices": "auto",
        "fgpu_context_bytes": 300 << 20,
        "gpu_health": {},
    }
    assert [{name: agent[name] for name in fgpu} for agent in (gpu, node)] == [fgpu, fgpu]


def test_errors_of_each_host_are_reported_before_any_change(tmp_path):
    agents = {
        "one": {**LOCAL, "ansible_host": "h1", "labels": ["gpu"], "units_per_gpu": {"A100": "all"}},
        "two": {**LOCAL, "ansible_host": "h2", "cpu_overcommit": "much", "resource_group": "a b"},
    }
    children = {"agents": {"hosts": agents}, "control": {"hosts": {"one": None}}}
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"children": children}}), encoding="utf-8")
    done = ansible("ansible-playbook", "--check", "-i", inventory, ROOT / "playbooks/site.yml")
    assert done.returncode != 0
    messages = sorted(re.findall(r'"msg": "(\w+: .*)"', done.stdout))
    assert [message.partition(";")[0] for message in messages] == [
        "one: labels: ['gpu'] is not a mapping",
        "two: resource_group: 'a b' is no name",
    ]
    assert "units_per_gpu.A100: 'all' is not a whole number from 0 to 1000" in messages[0]
    assert "cpu_overcommit: 'much' is not a number" in messages[1]
    assert re.findall(r"^TASK \[(.*?)\]", done.stdout, flags=re.MULTILINE)[-1] == "Check the agent's attributes"


def test_a_control_node_leaves_the_data_folders_directory_as_it_is(tmp_path):
    """It is its agent's, by `folders_mode`, or a share of which the server decides."""
    share = tmp_path / "share"
    share.mkdir()
    share.chmod(0o1777)
    role = {"name": "control_node", "tasks_from": "configure"}
    play = [{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.include_role": role}]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play), encoding="utf-8")
    looked = {"control_node_systemd": {"stat": {"exists": False}}, "control_node_looked": {"rc": 1}}
    hosts = {name: {**LOCAL, **looked, "folders_root": str(tmp_path / name)} for name in ("share", "missing")}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}), encoding="utf-8")
    done = ansible("ansible-playbook", "--check", "-i", tmp_path / "hosts.yml", tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"(item={share})" not in done.stdout
    made = done.stdout.partition("Create the directory of the data folders]")[2].partition("TASK")[0]
    assert sorted(re.findall(r"^(\w+): \[(\w+)\]", made, flags=re.MULTILINE)) == [
        ("changed", "missing"),
        ("skipping", "share"),
    ]


@pytest.mark.parametrize(
    ("database", "cluster", "is_refused"),
    [
        ("", "muster", True),
        ("sqlite:////srv/shared/muster.db", "muster", True),
        ("postgresql://muster:s3cret@db/muster", "muster", False),
        ("", "other", False),
    ],
)
def test_two_control_nodes_of_a_cluster_have_one_database(tmp_path, database, cluster, is_refused):
    """Each would take what the other launches for leftovers of its own."""
    (check, *_) = yaml.safe_load((ROOT / "roles/control_node/tasks/preflight.yml").read_text(encoding="utf-8"))
    hosts = {"c1": {**LOCAL, "control_node_cluster": cluster}, "c2": {**LOCAL}}
    inventory = {"all": {"children": {"control": {"hosts": hosts}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    play = {"hosts": "all", "gather_facts": False, "tasks": [check]}
    check["vars"] |= {"control_node_database": database, "control_node_settings": {}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    done = ansible("ansible-playbook", "-i", tmp_path / "hosts.yml", "-l", "c1", tmp_path / "play.yml")
    assert (done.returncode != 0) is is_refused, done.stdout
    assert ("c1 and c2 are control nodes of the cluster muster" in " ".join(done.stdout.split())) is is_refused
    assert "s3cret" not in done.stdout


@pytest.mark.parametrize(
    ("sources", "variables", "is_refused"),
    [
        (["a.yml"], {}, False),
        (["."], {}, False),
        (["a.yml", "b.yml"], {}, True),
        (["a.yml", "b.yml"], {"control_node_inventory": "/etc/muster/inventory"}, False),
        (["a.yml", "b.yml"], {"control_node_settings": {"inventory": "/etc/muster/inventory"}}, False),
    ],
)
def test_the_daemon_reads_all_inventories_of_the_run_or_none_is_taken(tmp_path, sources, variables, is_refused):
    """Agents of the second would be provisioned, and never get a session."""
    preflight = yaml.safe_load((ROOT / "roles/control_node/tasks/preflight.yml").read_text(encoding="utf-8"))
    checks = [task for task in preflight if task["name"].startswith("Refuse several inventories")]
    inventories = tmp_path / "inventories"
    inventories.mkdir()
    for name in ("a.yml", "b.yml"):
        (inventories / name).write_text(yaml.safe_dump({"all": {"hosts": {name[0]: LOCAL}}}), encoding="utf-8")
    play = {"hosts": "all", "gather_facts": False, "tasks": checks, "vars": {"control_node_settings": {}}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    words = [word for source in sources for word in ("-i", inventories / source)]
    done = ansible("ansible-playbook", *words, "-e", json.dumps(variables), tmp_path / "play.yml")
    assert (done.returncode != 0) is is_refused, done.stdout
    assert ("and the daemon would read the first alone" in " ".join(done.stdout.split())) is is_refused


def test_a_name_that_is_nearly_one_of_musters_is_refused_before_any_change(tmp_path):
    wrong = {"overlay_network_encripted": True, "reserve_cpu": 2, "folder_owner": "ada"}
    hosts = {"one": {**LOCAL, **wrong, "zones": ["a"], "ansible_scp_extra_args": "-O"}}
    inventory = {"all": {"children": {"agents": {"hosts": hosts}, "control": {"hosts": {"one": None}}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    extra = ("-e", "docker_engine_daemon_option={}", "-e", "site_own_images_catalog=1")
    done = ansible("ansible-playbook", "--check", "-i", tmp_path / "hosts.yml", *extra, ROOT / "playbooks/site.yml")
    assert done.returncode != 0
    (message,) = re.findall(r'"msg": "(\w+: Muster has .*)"', done.stdout)
    assert message == (
        "docker_engine_daemon_option: Muster has no such variable; did you mean docker_engine_daemon_options? "
        "folder_owner: Muster has no such variable; did you mean folders_owner? "
        "overlay_network_encripted: Muster has no such variable; did you mean overlay_network_encrypted? "
        "reserve_cpu: Muster has no such variable; did you mean reserved_cpu?"
    )

"""Literals that Ansible must have are the defaults of the settings, of the agents' code and of each role's page."""

from pathlib import Path

import pytest
import yaml

from muster.core.agents.gpu_providers import DRIVER_TREE, FGPU_TREE
from muster.core.launch.manifest import LaunchPolicy
from muster.settings import Settings
from tests.modules.agent_code import agent_names

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if (path / "defaults/main.yml").exists())


def loaded(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8")) or {}


def is_literal(value: object) -> bool:
    return "{{" not in str(value)


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_page_names_the_default_that_the_role_has(role):
    defaults = loaded(f"roles/{role}/defaults/main.yml")
    entry_points = loaded(f"roles/{role}/meta/argument_specs.yml")["argument_specs"].values()
    documented = {
        name: option["default"]
        for entry_point in entry_points
        for name, option in entry_point.get("options", {}).items()
        if name in defaults and "default" in option
    }
    assert documented == {
        name: defaults[name] if is_literal(defaults[name]) else documented[name] for name in documented
    }


def test_a_control_node_that_ansible_made_has_the_settings_defaults():
    defaults = {
        name.removeprefix("control_node_"): value
        for name, value in loaded("roles/control_node/defaults/main.yml").items()
    }
    settings = {name: field.default for name, field in Settings.model_fields.items()}
    same = [
        name for name, value in defaults.items() if name in settings and is_literal(value) and value not in ({}, [], "")
    ]
    assert set(same) >= {"cluster", "state_dir", "default_image", "observe_interval_s"}
    assert {name: str(defaults[name]) for name in same} == {name: str(settings[name]) for name in same}


def test_hosts_have_things_where_kernels_look_for_them():
    policy, fgpu = LaunchPolicy(), loaded("roles/fgpu/vars/main.yml")
    assert loaded("roles/session_runtime/vars/main.yml")["session_runtime_link"] == policy.runtime_path
    assert policy.runtime_path == agent_names.RUNTIME_PATH
    assert loaded("roles/folders/defaults/main.yml")["folders_root"] == policy.folders_root
    assert f"default('{policy.folders_root}')" in (ROOT / "roles/control_node/defaults/main.yml").read_text()
    assert fgpu["fgpu_path"] == FGPU_TREE == agent_names.FGPU_PATH
    assert fgpu["fgpu_driver_path"] == DRIVER_TREE
    assert f"DRIVER_DIR ?= {DRIVER_TREE}\n" in (ROOT / "native/Makefile").read_text()

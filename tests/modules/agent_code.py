"""The code that runs on agents, importable here as it is there: as parts of Ansible's own packages."""

from pathlib import Path

import ansible.module_utils
import ansible.modules

ROOT = Path(__file__).parents[2]
for package, folder in ((ansible.modules, "library"), (ansible.module_utils, "plugins/module_utils")):
    if str(ROOT / folder) not in package.__path__:
        package.__path__.append(str(ROOT / folder))

# Only now can these be found.
from ansible.module_utils.muster_agent import (
    converge,
    differences,
    host_mounts,
    host_state,
    kept_code,
    manifest_schema,
    mapped_mounts,
    mount_table,
    plan_differences,
    versioned_trees,
)
from ansible.module_utils.muster_agent import manifest as agent_manifest
from ansible.module_utils.muster_agent import names as agent_names
from ansible.module_utils.muster_agent import plan as agent_plan
from ansible.module_utils.muster_agent.engine import api as engine_api
from ansible.module_utils.muster_agent.engine import (
    attachment,
    container_spec,
    id_mapping,
    image_store,
    kernel_cgroup,
    layer_files,
    layer_limit,
    open_files,
    overlay_networks,
    removal,
)
from ansible.module_utils.muster_agent.engine import mount_check as mounted_where
from ansible.module_utils.muster_agent.firewall import iptables, nftables
from ansible.module_utils.muster_agent.firewall import site as firewall_site
from ansible.module_utils.muster_agent.folders import mounted as mount_folders
from ansible.module_utils.muster_agent.folders import owned as made_folders
from ansible.module_utils.muster_agent.folders import plain as plain_folders
from ansible.module_utils.muster_agent.folders import quota as folder_quota
from ansible.module_utils.muster_agent.folders import usage as folder_usage
from ansible.module_utils.muster_agent.gpus import (
    cdi,
    device_nodes,
    gpu_access,
    gpu_report,
    memory_limits,
    nvml,
    nvml_use,
    xids,
)
from ansible.module_utils.muster_agent.gpus import toolkit as gpu_toolkit
from ansible.module_utils.muster_agent.launch import (
    account_files,
    end_signals,
    gang_launch,
    gang_release,
    kernel_sshd,
    key_directory,
    last_words,
    listening_port,
    peer_names,
    tmpfs,
)
from ansible.module_utils.muster_agent.report import app_health, disk_use, host_report, kernel_usage, numa
from ansible.module_utils.muster_agent.report import observer as agent_observer
from ansible.modules import agent_converge, agent_folders, agent_report, stale_service

__all__ = [
    "account_files",
    "agent_converge",
    "agent_folders",
    "agent_manifest",
    "agent_names",
    "agent_observer",
    "agent_plan",
    "agent_report",
    "app_health",
    "attachment",
    "cdi",
    "container_spec",
    "converge",
    "device_nodes",
    "differences",
    "disk_use",
    "end_signals",
    "engine_api",
    "firewall_site",
    "folder_quota",
    "folder_usage",
    "gang_launch",
    "gang_release",
    "gpu_access",
    "gpu_report",
    "gpu_toolkit",
    "host_mounts",
    "host_report",
    "host_state",
    "id_mapping",
    "image_store",
    "iptables",
    "kept_code",
    "kernel_cgroup",
    "kernel_sshd",
    "kernel_usage",
    "key_directory",
    "last_words",
    "layer_files",
    "layer_limit",
    "listening_port",
    "made_folders",
    "manifest_schema",
    "mapped_mounts",
    "memory_limits",
    "mount_folders",
    "mount_table",
    "mounted_where",
    "nftables",
    "numa",
    "nvml",
    "nvml_use",
    "open_files",
    "overlay_networks",
    "peer_names",
    "plain_folders",
    "plan_differences",
    "removal",
    "stale_service",
    "tmpfs",
    "versioned_trees",
    "xids",
]

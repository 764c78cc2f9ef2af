"""The code that runs on agents, importable here as it is there: as parts of Ansible's own packages."""

from pathlib import Path

import ansible.module_utils
import ansible.modules

ROOT = Path(__file__).parents[2]
for package, folder in ((ansible.modules, "library"), (ansible.module_utils, "plugins/module_utils")):
    if str(ROOT / folder) not in package.__path__:
        package.__path__.append(str(ROOT / folder))

# Only now can these be found.
from ansible.module_utils import (  # noqa: E402
    account_files,
    agent_manifest,
    agent_names,
    agent_plan,
    app_health,
    container_spec,
    converge,
    differences,
    engine_api,
    folder_quota,
    folder_usage,
    gpu_access,
    gpu_report,
    host_report,
    host_state,
    kernel_cgroup,
    kernel_usage,
    key_directory,
    last_words,
    made_folders,
    mount_folders,
    mounted_where,
    numa,
    nvml,
    nvml_use,
    overlay_networks,
    plan_differences,
    removal,
    tmpfs,
    versioned_trees,
)
from ansible.modules import agent_converge, agent_folders, agent_report  # noqa: E402

__all__ = [
    "account_files",
    "agent_converge",
    "agent_folders",
    "agent_manifest",
    "agent_names",
    "agent_plan",
    "agent_report",
    "app_health",
    "container_spec",
    "converge",
    "differences",
    "engine_api",
    "folder_quota",
    "folder_usage",
    "gpu_access",
    "gpu_report",
    "host_report",
    "host_state",
    "kernel_cgroup",
    "kernel_usage",
    "key_directory",
    "last_words",
    "made_folders",
    "mount_folders",
    "mounted_where",
    "numa",
    "nvml",
    "nvml_use",
    "overlay_networks",
    "plan_differences",
    "removal",
    "tmpfs",
    "versioned_trees",
]

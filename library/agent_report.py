#!/usr/bin/python
"""Ansible module: report a host's resources and its kernels."""

DOCUMENTATION = r"""
module: agent_report
short_description: Report a Docker host's resources and its kernels
description:
  - Reads the host's processors, memory, disk, GPUs, Docker engine, images, and the kernels and networks of one cluster.
  - Changes nothing. Needs nothing on the host but Python 3.9 and a Docker engine with API 1.41 or newer.
  - The report's fields are described in C(docs/agent-contract.md).
options:
  cluster:
    description: The cluster whose kernels, networks and generation are reported.
    type: str
    default: muster
  runtime_path:
    description: Path of the session runtime, which C(roles/session_runtime) installs.
    type: path
    default: /opt/muster/runtime
  folders_root:
    description: The data root, whose plain directories are reported; without it they are unknown.
    type: path
attributes:
  check_mode:
    description: Can run in check mode and return the same as without.
    support: full
  diff_mode:
    description: Does not apply, since the module changes nothing.
    support: none
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - The Muster authors
"""

EXAMPLES = r"""
- name: Observe the agents
  agent_report:
    cluster: muster
  register: observed
"""

RETURN = r"""
report:
  description: The host's report, as C(docs/agent-contract.md) describes it.
  returned: success
  type: dict
  sample:
    version: 1
    hostname: gpu-01
    cpu_count: 64
    generation: 1763724000123
    kernels: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.muster_agent.engine.api import EngineApi, EngineError
from ansible.module_utils.muster_agent.launch.launch_error import host_message
from ansible.module_utils.muster_agent.names import RUNTIME_PATH
from ansible.module_utils.muster_agent.report.host_report import gather_report


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "muster"},
            "runtime_path": {"type": "path", "default": RUNTIME_PATH},
            "folders_root": {"type": "path"},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        report = gather_report(
            EngineApi(),
            given["cluster"],
            given["runtime_path"],
            module.warn,
            folders_root=given["folders_root"],
        )
    except EngineError as error:
        module.fail_json(msg=error.with_remedy())
    except OSError as error:
        module.fail_json(msg=f"this agent cannot be read: {host_message(error)}")
    module.exit_json(changed=False, report=report)


if __name__ == "__main__":
    main()

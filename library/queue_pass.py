"""One pass over the queue, inside a playbook."""

DOCUMENTATION = r"""
module: queue_pass
short_description: Work the queue of cluster sessions once
description:
  - Does what C(muster pass) does, by the same code. Observes the agents, schedules, launches and records.
  - Runs on the control node, with the Python that has Muster installed. While a daemon works the queue, waits for its
    pass to end.
version_added: "0.1.0"
author: Muster's founders
options:
  config:
    description: Muster's settings file.
    type: path
    default: /etc/muster/muster.yml
attributes:
  check_mode:
    support: partial
    description: Reports which sessions would be placed, from the last observation; agents are not visited.
  diff_mode:
    support: none
    description: A pass has no before and after of its own; see the sessions.
  idempotent:
    support: full
    description: A second pass changes nothing unless agents or users have changed something.
"""

EXAMPLES = r"""
- name: Work the queue
  queue_pass:
"""

RETURN = r"""
scheduled:
  description: Ids of the sessions that were placed, or would be.
  returned: always
  type: list
  elements: str
started:
  description: Ids of the sessions that run now.
  returned: always
  type: list
  elements: str
ended:
  description: Ids of the sessions that have ended.
  returned: always
  type: list
  elements: str
failed:
  description: Ids of the sessions that could not be launched.
  returned: always
  type: list
  elements: str
waiting:
  description: How many sessions wait.
  returned: always
  type: int
problems:
  description: The problem of each agent that could not be visited, by agent.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.muster_agent.control_node_module import fail_without_muster


def main() -> None:
    module = AnsibleModule(
        argument_spec={"config": {"type": "path", "default": "/etc/muster/muster.yml"}},
        supports_check_mode=True,
    )
    try:
        from muster.core.values.errors import MusterError  # noqa: PLC0415 - so that its absence gets a clear answer
        from muster.service.control_node import pass_as_data  # noqa: PLC0415
    except ImportError:
        fail_without_muster(module)
    try:
        module.exit_json(**pass_as_data(module.params["config"], check=module.check_mode))
    except MusterError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()

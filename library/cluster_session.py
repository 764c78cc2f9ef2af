"""A cluster session as an Ansible resource."""

DOCUMENTATION = r"""
module: cluster_session
short_description: Queue or end a cluster session
description:
  - Makes sure that a session of the given name is queued or running, or that none is.
  - Runs on the control node, with the Python that has Muster installed. Set C(ansible_python_interpreter) to
    C({{ ansible_playbook_python }}) if ansible-playbook runs with the same Python.
version_added: "0.1.0"
author: Muster's founders
options:
  name:
    description: Name of the session.
    type: str
    required: true
  state:
    description:
      - V(present) queues the session unless one of that name has not ended yet, and updates one that waits.
      - V(absent) ends the session of that name, if there is one.
      - V(awaited) queues and ends nothing, and waits as V(present) does for the session of that name, be it that it has
        ended already. Use it after a task that has queued one, since a short session may have ended by then.
    type: str
    choices: [present, absent, awaited]
    default: present
  spec:
    description:
      - The session spec, as in a session file. C(muster submit --schema) prints its JSON Schema.
      - A session that still waits with another spec is given this one, and keeps its id and its place in the queue.
        What the spec leaves out gets its default. Of an array, those that wait get it; what runs or has ended stays
        as it is.
      - If a session that waits no more differs, the module fails and shows the difference.
    type: dict
    default: {}
  owner:
    description:
      - The session's owner. A session of that name that is another user's fails the module.
      - With V(absent), V(root) ends anybody's.
    type: str
    default: root
  wait:
    description:
      - Wait until an interactive session runs and a batch session has ended; with V(absent), until it is gone. With
        V(awaited) that is always done.
    type: bool
    default: false
  wait_timeout:
    description: Seconds to wait at the most.
    type: int
    default: 600
  config:
    description: Muster's settings file.
    type: path
    default: /etc/muster/muster.yml
attributes:
  check_mode:
    support: full
    description: Reports what it would do, and fails where that would be refused; queues, changes and ends nothing.
  diff_mode:
    support: full
    description: Shows the session's state and spec before and after.
  idempotent:
    support: full
    description: A second run with the same arguments changes nothing while the session has not ended.
"""

EXAMPLES = r"""
- name: Three containers that reach each other by name
  cluster_session:
    name: train
    spec:
      cluster_size: 3
      cpu: 2
      mem: 4G
    wait: true

- name: A hundred sessions, eight at a time, once the training has succeeded
  cluster_session:
    name: evaluation
    spec:
      array: 0-99%8
      after_ok: train
      gpu_models: [A100, H100]
      labels:
        disk: ssd
      command: python evaluate.py --part $MUSTER_ARRAY_INDEX

- name: End the session and wait until it is gone
  cluster_session:
    name: train
    state: absent
    wait: true
"""

RETURN = r"""
session:
  description: The session, as C(muster show --json) prints it, the first one of an array; none if there is none.
  returned: always
  type: dict
sessions:
  description: All sessions of an array; else the one session, or none.
  returned: always
  type: list
  elements: dict
kernels:
  description: The session's kernels, each with name, agent, container id, state, address and published ssh port.
  returned: when there is a session
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.muster_agent.control_node_module import fail_without_muster


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent", "awaited"], "default": "present"},
            "spec": {"type": "dict", "default": {}},
            "owner": {"type": "str", "default": "root"},
            "wait": {"type": "bool", "default": False},
            "wait_timeout": {"type": "int", "default": 600},
            "config": {"type": "path", "default": "/etc/muster/muster.yml"},
        },
        supports_check_mode=True,
    )
    try:
        from muster.core.values.errors import MusterError  # noqa: PLC0415 - so that its absence gets a clear answer
        from muster.service.sessions.declared import DeclaredSession  # noqa: PLC0415
    except ImportError:
        fail_without_muster(module)
    given = module.params
    try:
        with DeclaredSession.opened(given["config"]) as declared:
            if given["state"] == "present":
                outcome = declared.present(given["name"], given["spec"], given["owner"], check=module.check_mode)
            elif given["state"] == "absent":
                outcome = declared.absent(given["name"], given["owner"], check=module.check_mode)
            else:
                outcome = declared.awaited(given["name"])
            if (given["wait"] or given["state"] == "awaited") and not module.check_mode:
                outcome = declared.waited(outcome, given["wait_timeout"])
    except MusterError as error:
        module.fail_json(msg=str(error))
    result = outcome.as_dict()
    if module._diff:  # noqa: SLF001 - Ansible has no public name for it
        result["diff"] = outcome.diff
    if outcome.failure:
        module.fail_json(msg=outcome.failure, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

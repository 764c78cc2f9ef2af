#!/usr/bin/python
"""Ansible module: folders with an owner on one host."""

DOCUMENTATION = r"""
module: agent_folders
short_description: Make, measure or remove data folders that have an owner
description:
  - Folders lie below the folders' root in directories that belong to root.
  - A folder belongs to its owner's uid and to a group of its own, with mode 2770, and has a project quota where the
    file system knows such.
  - A folder that is removed goes to a trash directory first, so that nothing half-removed can be mounted.
  - Needs nothing on the host but Python 3.9 and root.
options:
  root:
    description: Where folders lie on this host.
    type: path
    required: true
  folders:
    description: The folders.
    type: list
    elements: dict
    required: true
    options:
      path:
        description: Place of the folder below O(root), as the control node gives it.
        type: str
        required: true
      uid:
        description: Who owns it.
        type: int
        required: true
      number:
        description: Its group and its project.
        type: int
        required: true
      quota_bytes:
        description: How much it may hold; left out for any amount.
        type: int
  state:
    description:
      - With V(present) they are made where they are missing, and their quotas set.
      - With V(absent) they are removed with all that is in them.
      - With V(measured) nothing is changed.
    type: str
    choices: [present, absent, measured]
    default: present
  patience:
    description: Seconds for counting what they hold, where the kernel does not count it.
    type: float
    default: 10
attributes:
  check_mode:
    description: Changes nothing, and tells whether something would be changed.
    support: full
  diff_mode:
    description: Shows the folders that come and go.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - The Muster authors
"""

EXAMPLES = r"""
- name: Measure a folder
  agent_folders:
    root: /srv/muster/folders
    state: measured
    folders:
      - path: .muster/folders/ada/data-6f1c0000
        uid: 1000
        number: 1539571712
        quota_bytes: 10737418240
"""

RETURN = r"""
folders:
  description: One entry for each folder, as it is after the run.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: Its place below the root.
      type: str
    exists:
      description: Whether it is on this host.
      type: bool
    used_bytes:
      description: How much it holds; null where counting took too long.
      type: int
    files:
      description: How many files and directories it holds; null where counting took too long.
      type: int
    quota:
      description: V(enforced), or why it is not; null without a quota.
      type: str
    shared_from:
      description: Where a network file system has it from; null for one of the host's own.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.muster_agent.folders.mounted import FolderError
from ansible.module_utils.muster_agent.folders.owned import exists, make, parse_entry, remove
from ansible.module_utils.muster_agent.folders.usage import usage


def main() -> None:
    of_folder = {
        "path": {"type": "str", "required": True},
        "uid": {"type": "int", "required": True},
        "number": {"type": "int", "required": True},
        "quota_bytes": {"type": "int"},
    }
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "folders": {"type": "list", "elements": "dict", "required": True, "options": of_folder},
            "state": {"type": "str", "choices": ["present", "absent", "measured"], "default": "present"},
            "patience": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    root, state = module.params["root"], module.params["state"]
    before, after = {}, {}
    try:
        entries = [parse_entry(entry) for entry in module.params["folders"]]
        for entry in entries:
            was_there = exists(root, entry.path)
            will_be_there = {"present": True, "absent": False}.get(state, was_there)
            if was_there != will_be_there:
                before[entry.path] = "present" if was_there else "absent"
                after[entry.path] = "present" if will_be_there else "absent"
            if state == "present" and not module.check_mode:
                make(root, entry, sets_quota=True)
            # Also one that is not there: what a killed run left in the trash goes.
            if state == "absent" and not module.check_mode:
                remove(root, entry.path)
        folders = usage(root, entries, module.params["patience"])
    except (FolderError, KeyError, TypeError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(before), folders=folders, diff={"before": before, "after": after})


if __name__ == "__main__":
    main()

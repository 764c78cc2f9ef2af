#!/usr/bin/python
"""Ansible module: folders with an owner on one host."""

DOCUMENTATION = r"""
module: agent_folders
short_description: Make, measure or remove data folders that have an owner
description:
  - Folders lie below the folders' root in directories that belong to root.
  - A folder belongs to its owner's uid and to a group of its own, with mode 2770. It has a project quota if the file
    system supports those.
  - A folder that is removed goes to a trash directory first, so that nothing half-removed can be mounted.
  - Needs nothing on the host but Python 3.9 and root.
options:
  root:
    description: Directory of the folders on this host.
    type: path
    required: true
  folders:
    description: The folders.
    type: list
    elements: dict
    required: true
    options:
      path:
        description: Path of the folder below O(root), as the control node chose it.
        type: str
        required: true
      uid:
        description: The owner's uid.
        type: int
        required: true
      number:
        description: The folder's gid, which is also the number of its project quota.
        type: int
        required: true
      quota_bytes:
        description: Bytes that the folder may hold; without a value there is no quota.
        type: int
  state:
    description:
      - V(present) creates missing folders and sets the quotas.
      - V(absent) removes the folders with their content.
      - V(measured) changes nothing.
    type: str
    choices: [present, absent, measured]
    default: present
  patience:
    description: Seconds for counting the folders' content, if the Linux kernel does not count it by a quota.
    type: float
    default: 10
attributes:
  check_mode:
    description: Changes nothing and returns whether something would be changed.
    support: full
  diff_mode:
    description: Shows the folders that are created, changed or removed, and their owners, modes and quotas that change.
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
      description: The folder's path below the root.
      type: str
    exists:
      description: Whether the folder is on this host.
      type: bool
    used_bytes:
      description: Bytes that it holds; null if counting took too long.
      type: int
    files:
      description: Files and directories that it holds; null if counting took too long.
      type: int
    quota:
      description: V(enforced), or the reason why the quota is not enforced; null without a quota.
      type: str
    shared_from:
      description: The server and path of a network file system; null for a file system of the host.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.muster_agent.folders.mounted import FolderError
from ansible.module_utils.muster_agent.folders.owned import Entry, differences, make, parse_entry, remains, remove
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
            differing = _differing(root, entry, state)
            if differing:
                before[entry.path] = {name: pair[0] for name, pair in differing.items()}
                after[entry.path] = {name: pair[1] for name, pair in differing.items()}
            if state == "present" and not module.check_mode:
                make(root, entry, sets_quota=True)
            # A missing folder is removed too, since a killed run may have left it in the trash.
            if state == "absent" and not module.check_mode:
                remove(root, entry.path)
        folders = usage(root, entries, module.params["patience"])
    except (FolderError, KeyError, TypeError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(before), folders=folders, diff={"before": before, "after": after})


def _differing(root: str, entry: Entry, state: str) -> dict[str, tuple[str, str]]:
    """Return what the run would change of a folder: how it is and how it shall be."""
    if state == "present":
        return differences(root, entry)
    if state == "absent" and remains(root, entry.path):
        return {"state": ("present", "absent")}
    return {}


if __name__ == "__main__":
    main()

#!/usr/bin/python
"""Ansible module: switch a host over to a new version of a tree of files."""

DOCUMENTATION = r"""
module: versioned_tree
short_description: Switch a host over to a new version of a tree of files
description:
  - Moves a tree that was built beside a link to its final place and points the link at it, in one step.
  - Running containers keep the tree that they were started with. Trees that no process has mounted any more are
    removed.
  - Needs nothing on the host but Python 3.9.
options:
  path:
    description: The link. Trees lie beside it, in a directory with the link's name and C(-versions) after it.
    type: path
    required: true
  tree:
    description: The new tree, on the file system of the link. The first line of its file C(VERSION) is its name.
    type: path
    required: true
attributes:
  check_mode:
    description: Not possible, since the tree is not built in check mode.
    support: none
  diff_mode:
    description: Shows nothing.
    support: none
  idempotent:
    description: Not possible, since the tree is moved away from the place where it was built.
    support: none
author:
  - The Muster authors
"""

EXAMPLES = r"""
- name: Switch over to the new runtime
  versioned_tree:
    path: /opt/muster/runtime
    tree: /opt/muster/runtime-versions/.building-6f1c/tree
"""

RETURN = r"""
version:
  description: The version that the link points at now.
  returned: success
  type: str
  sample: openssh-9.2p1-39c599e2852b
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.muster_agent.versioned_trees import TreeError, switch_over


def main() -> None:
    path = {"type": "path", "required": True}
    module = AnsibleModule(argument_spec={"path": path, "tree": path})
    try:
        version = switch_over(Path(module.params["path"]), Path(module.params["tree"]))
    except (OSError, TreeError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, version=version)


if __name__ == "__main__":
    main()

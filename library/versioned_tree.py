#!/usr/bin/python
"""Ansible module: switch a host over to a new version of a tree of files."""

DOCUMENTATION = r"""
module: versioned_tree
short_description: Switch a host over to a new version of a tree of files
description:
  - A tree that was made beside a link comes to its place, and the link is pointed at it, all of it or none.
  - Containers that run keep the tree that they were started with. Trees that no process has mounted any more are
    removed.
  - Needs nothing on the host but Python 3.9.
options:
  path:
    description: The link. Trees lie beside it, in a directory of its name with C(-versions) after it.
    type: path
    required: true
  tree:
    description: The new tree, on the file system of the link. The first line of its file C(VERSION) is its name.
    type: path
    required: true
attributes:
  check_mode:
    description: There is no tree yet that it could tell of.
    support: none
  diff_mode:
    description: Shows nothing.
    support: none
  idempotent:
    description: The tree is gone from where it was made.
    support: none
author:
  - The Muster authors
"""

EXAMPLES = r"""
- name: Switch over to it
  versioned_tree:
    path: /opt/muster/runtime
    tree: /opt/muster/runtime-versions/.building-6f1c/tree
"""

RETURN = r"""
version:
  description: What the link points at now.
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

"""What the modules that run on the control node share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ansible.module_utils.basic import missing_required_lib

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def fail_without_muster(module: AnsibleModule) -> NoReturn:  # type: ignore[misc] # Ansible has no types
    """Say which Python the module should have been run with."""
    module.fail_json(
        msg=missing_required_lib("muster")
        + " This module runs on the control node: set ansible_python_interpreter to the Python that has Muster,"
        " such as {{ ansible_playbook_python }}."
    )

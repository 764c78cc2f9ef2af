#!/usr/bin/python
"""Ansible module: find out whether a service was started before its files were last written."""

DOCUMENTATION = r"""
module: stale_service
short_description: Find out whether a service was started before its files were last written
description:
  - A run that breaks off between a change of a file and the restart of its service leaves nothing that a handler of the
    next run would notice. The service's own process tells it.
  - Changes nothing. Needs nothing on the host but Python 3.9, and systemctl where systemd runs.
options:
  service:
    description: The service's name for systemd, where systemd runs.
    type: str
    required: true
  pid_file:
    description: The file with the number of the service's process, where systemd does not run.
    type: path
  files:
    description: The files that the service reads when it starts. One that is missing counts as never written.
    type: list
    elements: path
    required: true
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
- name: Compare the daemon with its settings
  stale_service:
    service: muster
    pid_file: /run/muster-daemon.pid
    files: [/etc/muster/muster.yml]
  register: daemon

- name: Restart it if they are newer
  ansible.builtin.systemd_service:
    name: muster
    state: "{{ daemon.stale | ternary('restarted', 'started') }}"
"""

RETURN = r"""
stale:
  description: Whether the service runs, and was started before one of the files was last written.
  returned: success
  type: bool
"""

import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.muster_agent.process_age import pid_in, process_started_at

SYSTEMD = Path("/run/systemd/system")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "str", "required": True},
            "pid_file": {"type": "path"},
            "files": {"type": "list", "elements": "path", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    pid = _main_pid(given["service"]) if SYSTEMD.is_dir() else pid_in(given["pid_file"] or "")
    started_at = process_started_at(pid) if pid else None
    written_at = [Path(file).stat().st_mtime for file in given["files"] if Path(file).exists()]
    stale = started_at is not None and any(started_at < at for at in written_at)
    module.exit_json(changed=False, stale=stale)


def _main_pid(service: str) -> int:
    """Return the service's process by systemd; 0 if it does not run."""
    command = ["systemctl", "show", "--property=MainPID", "--value", service]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return int(said) if said.isdigit() else 0


if __name__ == "__main__":
    main()

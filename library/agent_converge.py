#!/usr/bin/python
"""Ansible module: make one host match its manifest."""

DOCUMENTATION = r"""
module: agent_converge
short_description: Make one Docker host match its manifest
description:
  - Launches the kernels of the manifest that the host lacks, all of a session or none.
  - Starts the commands of a session once the manifest allows it.
  - Creates and removes the cluster's overlay networks, on the one host that keeps them.
  - Stops sessions that are to end, and returns the exit status and the end of the output of their kernels.
  - Removes containers and networks that carry the cluster's label and are not in the manifest.
  - A manifest older than one that the host has accepted is refused.
  - Needs nothing on the host but Python 3.9, root, a Docker engine with API 1.41 or newer, and the session runtime.
  - The manifest's fields are described in C(docs/agent-contract.md).
options:
  manifest:
    description:
      - Everything that this host should run for one cluster, as one JSON document.
      - It holds keys, so it is never logged.
    type: json
    required: true
attributes:
  check_mode:
    description: Changes nothing and returns what would be changed.
    support: full
  diff_mode:
    description: Shows the containers, networks, key directories, releases and last words that are added or removed.
    support: full
  idempotent:
    description: A second run with the same manifest changes nothing.
    support: full
author:
  - The Muster authors
"""

EXAMPLES = r"""
- name: Make every agent match its manifest
  agent_converge:
    manifest: "{{ muster_manifests[inventory_hostname] }}"
  register: converged

- name: Empty this host of the cluster's kernels
  agent_converge:
    manifest:
      version: 1
      cluster: muster
      generation: 1763724000124
      runtime_path: /opt/muster/runtime
      sshd_port: 2200
      folders_root: /srv/muster/folders
      begin_by_s:
      start_timeout_s: 60
      stop_grace_s: 10
      log_max_bytes: 1048576
      overlays:
      sessions: []
      kept_spools: []
"""

RETURN = r"""
generation:
  description: The manifest's generation, which the host has now accepted.
  returned: success
  type: int
sessions:
  description: One entry for each session of the manifest. After a failure, some may be missing; run the module again.
  returned: success, and a failure after the sessions were worked on
  type: list
  elements: dict
  contains:
    id:
      description: The session's id.
      type: str
    outcome:
      description:
        - C(started), C(released), C(kept), C(stopped) or C(failed).
        - A launch that failed leaves nothing behind. A release that failed has changed nothing.
      type: str
    error:
      description: Why it failed, in one line for the session's user.
      type: str
    permanent:
      description: Whether a retry cannot help.
      type: bool
last_words:
  description: How the kernels of stopped sessions ended, and the end of their output (gzip, base64).
  returned: success, and a failure after the sessions were worked on
  type: list
  elements: dict
report:
  description: The host's report after the run, as M(agent_report) returns it.
  returned: success
  type: dict
nothing_begun:
  description: Set when the whole manifest was refused, before any of it was carried out.
  returned: when it was refused
  type: bool
stale_generation:
  description: Set when the manifest was refused because the host has accepted a newer one.
  returned: when the manifest is out of date
  type: bool
agent_generation:
  description: The newest generation that the host has accepted.
  returned: when the manifest is out of date
  type: int
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.muster_agent.converge import RefusedError, StaleGenerationError, converge, foresee
from ansible.module_utils.muster_agent.engine.api import EngineApi, EngineError
from ansible.module_utils.muster_agent.launch.account_files import forget_other_images
from ansible.module_utils.muster_agent.launch.launch_error import host_message
from ansible.module_utils.muster_agent.manifest import ManifestError, parse_manifest
from ansible.module_utils.muster_agent.report.host_report import gather_report


def main() -> None:
    module = AnsibleModule(
        argument_spec={"manifest": {"type": "json", "required": True, "no_log": True}},
        supports_check_mode=True,
    )
    engine = EngineApi()
    act = foresee if module.check_mode else converge
    try:
        manifest = parse_manifest(json.loads(module.params["manifest"]))
        outcome = act(engine, manifest, module.warn)
    except StaleGenerationError as error:
        generation = error.agent_generation
        module.fail_json(msg=str(error), nothing_begun=True, stale_generation=True, agent_generation=generation)
    except (ManifestError, RefusedError) as error:
        module.fail_json(msg=str(error), nothing_begun=True)
    except EngineError as error:
        module.fail_json(msg=error.with_remedy(), nothing_begun=module.check_mode)
    done = {
        "changed": outcome.differences.changed,
        "diff": outcome.differences.diff(),
        "generation": manifest.generation,
        "sessions": outcome.sessions,
        "last_words": outcome.last_words,
    }
    try:
        report = gather_report(
            engine,
            manifest.cluster,
            manifest.runtime_path,
            module.warn,
            outcome.leftovers,
            manifest.folders_root,
            outcome.generation_before,
        )
        if not module.check_mode:
            forget_other_images(manifest.cluster, {image["id"] for image in report["images"]})
    except EngineError as error:
        module.fail_json(msg=error.with_remedy(), **done)
    except OSError as error:
        module.fail_json(msg=f"this agent cannot be read: {host_message(error)}", **done)
    if outcome.unclear:
        module.fail_json(msg="; ".join(outcome.unclear), **done)
    module.exit_json(report=report, **done)


if __name__ == "__main__":
    main()

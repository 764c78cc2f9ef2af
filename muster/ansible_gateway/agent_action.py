"""The control node's side of the modules that run on agents.

What the inventory says of an agent is rendered here, never there: a host that is not to be trusted can neither change
it nor see it. Nor does anything of its result reach Ansible that Ansible would act on, such as facts.
"""

import json
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from muster.ansible_gateway.layout import INVENTORY

_MOST_BYTES = 256 << 20
_KEPT = (
    *("changed", "diff", "failed", "msg", "warnings", "exception"),
    *("report", "generation", "sessions", "last_words", "nothing_begun", "stale_generation", "agent_generation"),
    "folders",
)


class AgentAction(ActionBase):  # type: ignore[misc]
    """Runs the module of the task's name, and adds the variable `agent_attributes` to its result as INVENTORY."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        attributes = self._templar.template((task_vars or {}).get("agent_attributes", {}))
        result = self._execute_module(task_vars=task_vars)
        return {**_kept(result), INVENTORY: attributes}


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: result[name] for name in _KEPT if name in result}
    if len(json.dumps(kept, default=str)) > _MOST_BYTES:
        raise AnsibleActionFail(f"the agent's answer is longer than {_MOST_BYTES >> 20} MiB")
    return kept

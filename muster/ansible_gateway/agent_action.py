"""The control node's side of the modules that run on agents.

What the inventory says of an agent is rendered here, never there: a host that is not to be trusted can neither change
it nor see it. Nor does anything of its result reach Ansible that Ansible would act on, such as facts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from muster.ansible_gateway.bounded_programs import bounded_pipes
from muster.ansible_gateway.kept_code import NOT_KEPT, by_name, with_sources
from muster.ansible_gateway.layout import INVENTORY, MOST_OF_A_REPORT_BYTES
from muster.ansible_gateway.packed_modules import sources_of

# A visit may bring the logs of many kernels that ended.
_MOST_OF_A_VISIT = 256 << 20
# What hands a result on after this, in Ansible and in ansible-runner, drops one that is too deep for it.
_MOST_LEVELS = 50
_KEPT = (
    *("changed", "diff", "failed", "msg", "warnings", "exception"),
    *("report", "generation", "sessions", "last_words", "nothing_begun", "stale_generation", "agent_generation"),
    "folders",
)


class AgentAction(ActionBase):  # type: ignore[misc]
    """An action that runs the module of the task's name, and adds `agent_attributes` to its result as INVENTORY."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        attributes = self._templar.template((task_vars or {}).get("agent_attributes", {}))
        if not isinstance(attributes, Mapping):
            raise AnsibleActionFail(
                "agent_attributes is no mapping; set the variables of the inventory that it is made of in its place"
                " (playbooks/group_vars/agents.yml)"
            )
        most_bytes = _MOST_OF_A_VISIT if self._task.action == "agent_converge" else MOST_OF_A_REPORT_BYTES
        with bounded_pipes(most_bytes) as allowance:
            result = self._execute_as(by_name, task_vars)
            if result.get(NOT_KEPT):
                result = self._execute_as(partial(with_sources, sources_of=sources_of), task_vars)
        if allowance.is_exceeded:
            raise AnsibleActionFail(f"the agent's answer is longer than {most_bytes >> 20} MiB")
        kept = _kept(result)
        if _is_deeper(kept, _MOST_LEVELS):
            raise AnsibleActionFail(f"the agent's answer has more than {_MOST_LEVELS} levels")
        return {**kept, INVENTORY: attributes}

    def _execute_as(self, program: Callable[[bytes], bytes], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Return the module's result. What Ansible would send is turned into another `program` that does the same."""
        self._program = program
        result: dict[str, Any] = self._execute_module(task_vars=task_vars)
        return result

    def _configure_module(self, *arguments: Any, **named: Any) -> tuple[Any, str]:  # noqa: ANN401 - as in Ansible
        built, path = super()._configure_module(*arguments, **named)
        return replace(built, b_module_data=self._program(built.b_module_data)), path


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in _KEPT if name in result}


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether dictionaries and lists lie in one another in more levels than so many."""
    level: list[object] = [value]
    for _ in range(levels):
        level = [part for each in level for part in _parts(each)]
    return any(isinstance(each, dict | list) for each in level)


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()

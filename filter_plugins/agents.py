"""Check the agents' attributes in the inventory by the same rules as the scheduler."""

from collections.abc import Callable, Mapping

from ansible.errors import AnsibleFilterError


def _attribute_errors(attributes: object) -> list[str]:
    if not isinstance(attributes, Mapping):
        raise AnsibleFilterError("muster_attribute_errors takes the mapping `agent_attributes`")
    # Each task whose templates have any filter loads all filters anew, and this takes 65 ms.
    from muster.core.agents.agent_inventory import agent_inventory  # noqa: PLC0415

    return [str(error) for error in agent_inventory(attributes).errors]


class FilterModule:
    """`agent_attributes | muster_attribute_errors`: a line for each value that is not valid."""

    def filters(self) -> dict[str, Callable[[object], list[str]]]:
        return {"muster_attribute_errors": _attribute_errors}

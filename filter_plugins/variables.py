"""Check the variables that playbooks take on the command line: no argument specification does."""

from collections.abc import Callable, Mapping

from ansible.module_utils.parsing.convert_bool import BOOLEANS


def _boolean_errors(values: Mapping[str, object]) -> list[str]:
    # Ansible's own filter `bool` takes any other word for false.
    return [
        f"{name}: {value!r} is neither true nor false; write true or false"
        for name, value in values.items()
        if not isinstance(value, bool) and str(value).lower() not in BOOLEANS
    ]


class FilterModule:
    """`{name: value} | muster_boolean_errors`: a line for each value that is neither true nor false."""

    def filters(self) -> dict[str, Callable[[Mapping[str, object]], list[str]]]:
        return {"muster_boolean_errors": _boolean_errors}

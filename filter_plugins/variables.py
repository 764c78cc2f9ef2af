"""Check the variables of playbooks: their names, and those values for which there is no argument specification."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import yaml
from ansible.module_utils.parsing.convert_bool import BOOLEANS

# A site has variables of its own. One that differs in a letter or two is none of them.
_NEARNESS = 0.9
_DEFAULTED = re.compile(r"\b([a-z]+(?:_[a-z]+)+) \| default\(")


def _boolean_errors(values: Mapping[str, object]) -> list[str]:
    # Ansible's own filter `bool` takes any other word for false.
    return [
        f"{name}: {value!r} is neither true nor false; write true or false"
        for name, value in values.items()
        if not isinstance(value, bool) and str(value).lower() not in BOOLEANS
    ]


def _name_errors(names: Iterable[str], playbooks: str) -> list[str]:
    known = _known_names(Path(playbooks))
    # Ansible's own are none of Muster's, however near, and are many.
    others = sorted(name for name in set(names) - known if not name.startswith("ansible_"))
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=_NEARNESS) for name in others}
    return [
        f"{name}: Muster has no such variable; did you mean {one}?" for name, found in near.items() for one in found
    ]


def _known_names(playbooks: Path) -> set[str]:
    """Return the variables of all roles, and those of agents that are of two words or more."""
    names = set(_DEFAULTED.findall((playbooks / "group_vars" / "agents.yml").read_text(encoding="utf-8")))
    for path in playbooks.parent.glob("roles/*/meta/argument_specs.yml"):
        specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        names.update(*(spec.get("options", {}) for spec in specs.values()))
    return names


class FilterModule:
    """`{name: value} | muster_boolean_errors`: a line for each value that is neither true nor false.

    `names | muster_name_errors(directory of the playbooks)`: a line for each name that is nearly one of Muster's.
    """

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"muster_boolean_errors": _boolean_errors, "muster_name_errors": _name_errors}

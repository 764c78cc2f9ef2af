"""Parse and format amounts of resources in templates, as Muster's command line does."""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from muster.core.values.units import format_bytes, format_milli, parse_bytes, parse_milli


def _filter(function: Callable[[Any], object]) -> Callable[[object], object]:
    def apply(value: object) -> object:
        try:
            return function(value)
        except ValueError as error:
            raise AnsibleFilterError(str(error)) from error

    return apply


class FilterModule:
    """`'4G' | muster_bytes`, `'0.5' | muster_milli`, and back: `muster_size`, `muster_cores`."""

    def filters(self) -> dict[str, Callable[[object], object]]:
        return {
            "muster_bytes": _filter(parse_bytes),
            "muster_milli": _filter(parse_milli),
            "muster_size": _filter(lambda amount: format_bytes(int(amount))),
            "muster_cores": _filter(lambda amount: format_milli(int(amount))),
        }

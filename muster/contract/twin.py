"""The manifest's schema for agents, which have no pydantic: `python -m muster.contract.twin` prints their module.

It is `plugins/module_utils/muster_agent/manifest_schema.py`; a test holds that the two agree.
"""

from typing import Any

from muster.contract.manifest import Manifest

_FOR_PEOPLE = ("title", "description", "default")
_HEADER = '"""The manifest as JSON Schema: written by `python -m muster.contract.twin`, not by hand."""'


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema of a manifest, without what is for people only."""
    schema = Manifest.model_json_schema()
    definitions = schema.pop("$defs")
    return {**_rules(schema), "$defs": {name: _rules(entry) for name, entry in sorted(definitions.items())}}


def _rules(schema: dict[str, Any]) -> dict[str, Any]:
    rules = {name: value for name, value in schema.items() if name not in _FOR_PEOPLE}
    for name in ("properties", "patternProperties"):
        if name in rules:
            rules[name] = {field: _rules(entry) for field, entry in rules[name].items()}
    for name in ("anyOf", "oneOf"):
        if name in rules:
            rules[name] = [_rules(entry) for entry in rules[name]]
    for name in ("items", "additionalProperties"):
        if isinstance(rules.get(name), dict):
            rules[name] = _rules(rules[name])
    return rules


if __name__ == "__main__":
    imports = "from __future__ import annotations\n\nfrom typing import Any"
    print(f"{_HEADER}\n\n{imports}\n\nMANIFEST: dict[str, Any] = {manifest_schema()!r}")  # noqa: T201

"""docs/agent-contract.md names every field of manifests and reports."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.contract.report import Report
from muster.contract.twin import manifest_schema

PAGE = Path(__file__).parents[3] / "docs" / "agent-contract.md"


def _fields(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for part in parts:
        yield from _fields(part)


@pytest.mark.parametrize("schema", [manifest_schema(), Report.model_json_schema()], ids=["manifest", "report"])
def test_the_page_names_every_field(schema):
    # In the examples, or in code in the text.
    named = set(re.findall(r'["`]([a-z_0-9]+)["`]', PAGE.read_text("utf-8")))
    assert sorted(set(_fields(schema)) - named) == []

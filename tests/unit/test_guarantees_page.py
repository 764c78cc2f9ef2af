"""The page of the promises names tests that exist, at least one for each promise."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def named_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_each_test_that_the_page_names_exists(path, name):
    assert name.startswith("test_")
    assert name in named_in(ROOT / path)


@pytest.mark.parametrize("promise", PAGE.split("\n## ")[1:], ids=lambda text: text.partition("\n")[0])
def test_each_promise_has_named_in_every_row(promise):
    rows = [line for line in promise.splitlines() if line.startswith("| ")][2:]
    assert rows
    assert all(re.search(r"\| `tests/[\w/]+\.py::test_\w+` \|$", row) for row in rows)

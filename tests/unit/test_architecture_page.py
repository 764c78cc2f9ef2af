"""The page of the architecture names files, functions and rooms that exist."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CHANGES = (
    "A new field of the spec",
    "A new flag",
    "A new reason to wait",
    "A new field in the report",
    "A new page",
    "A new migration",
    "A new role variable",
    "A new scheduling policy",
    "A new API route",
    "A new benchmark or figure",
)
# Files that a running lab makes here do not belong to the repository.
_TOP = {path.name for path in ROOT.iterdir()} - {".lab", ".lab-gpu"}


def named_paths(text: str) -> set[str]:
    """Return the backticked paths of the repository; ROLE stands for any role."""
    words = re.findall(r"`([\w./-]+)`", text)
    return {word for word in words if "/" in word and word.split("/")[0] in _TOP and "ROLE" not in word}


def section(heading: str) -> str:
    return ARCHITECTURE.partition(f"{heading}\n")[2].partition("\n#")[0]


def walk() -> list[tuple[str, str]]:
    """Return function and file of each row of the tables about a session's way."""
    return re.findall(r"^\| `(\w+)` \| `([\w./]+)` \|", section("## One session's way"), flags=re.MULTILINE)


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("heading", CHANGES)
def test_each_typical_change_names_files_that_exist(heading):
    named = named_paths(section(f"### {heading}"))
    assert named
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "DEVELOPERS.md"])
def test_every_path_on_the_page_exists(page):
    named = named_paths((ROOT / page).read_text(encoding="utf-8"))
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_a_sessions_way_goes_through_functions_that_exist():
    assert len(walk()) > 30
    assert [row for row in walk() if row[0] not in functions(ROOT / row[1])] == []


def test_the_rooms_of_the_core_are_those_of_import_linter():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["muster.core"]]
    rows = re.findall(r"^\| (`.*?) \|", section("### `muster/core`"), flags=re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == [set(re.findall(r"\w+", layer)) for layer in layers]


@pytest.mark.parametrize("package", ["muster/service", "muster/web", "muster/store", "muster/cli"])
def test_every_room_is_on_the_page(package):
    rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    page = section("### `muster/service`") if package == "muster/service" else ARCHITECTURE
    prefix = "" if package == "muster/service" else f"{package}/"
    assert {room for room in rooms if f"`{prefix}{room}`" not in page} == set()

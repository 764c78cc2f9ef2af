"""The lines that tests reach, as modules mark them: those that ran, wherever they ran, and no other."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.running.reached_lines import ReachedLines

MODULE = '''"""A docstring that stays one."""
from __future__ import annotations

import functools


def part(function):
    return function


@functools.cache
def first(value):
    """Another."""
    if value > 1:
        return "more"
    elif value < 0:
        return "less"
    for _ in range(value):
        value += 1
    else:
        value = 0
    try:
        return [1][value + 5]
    except (
        IndexError
    ):
        pass
    finally:
        value = None
    match value:
        case 1:
            return "one"
        case None:
            return "none"


class Kind:
    """Its words."""

    size: int = 3

    async def unused(self):
        return 2


@part
def compiled():
    return __import__("sys")._getframe().f_code.co_consts


def never():
    return 3
'''


@pytest.fixture
def package(tmp_path):
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "before.py").write_text("A = 1\nB = 2\n")
    (tmp_path / "it" / "module.py").write_text(MODULE)
    (tmp_path / "it" / "empty.py").touch()
    (tmp_path / "it" / "last.py").write_text("LAST = 1")
    return tmp_path / "it"


@pytest.fixture
def lines(package, monkeypatch):
    made = ReachedLines(package)
    # What else is loaded would mark its lines in this memory.
    with monkeypatch.context() as patch:
        made.begin(patch)
        yield made


def load(package, name):
    spec = importlib.util.spec_from_file_location(name, package / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(*pieces):
    """Return the numbers of the lines that begin with these words."""
    found = [line for line, text in enumerate(MODULE.splitlines(), 1) if text.strip().startswith(pieces)]
    assert len(found) >= len(pieces)
    return set(found)


def test_lines_count_that_ran_and_the_module_does_what_it_did(package, lines):
    module = load(package, "module")
    on_import = numbers("from", "import", "@", "def", "async", "class", "size") | {8}
    assert set(lines.reached()[str(package / "module.py")]) == on_import
    assert module.__doc__ == "A docstring that stays one."
    assert (module.first.__doc__, module.Kind.__doc__, module.Kind.size) == ("Another.", "Its words.", 3)
    assert module.first(0) == "none"
    in_it = "if", "elif", "for", "value = 0", "try", "return [1]", "except", "pass", "value = None", "match"
    in_it = numbers(*in_it, "case None", 'return "none"')
    assert set(lines.reached()[str(package / "module.py")]) == on_import | in_it
    # What is compiled runs as it was written.
    as_written = {}
    exec(MODULE, as_written)
    assert module.compiled() == as_written["compiled"]()


def test_a_line_counts_that_a_fork_reached(package, lines):
    module = load(package, "module")
    child = os.fork()
    if child == 0:
        module.never()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert numbers("return 3") <= set(lines.reached()[str(package / "module.py")])


def test_modules_do_not_mark_each_others_lines(package, lines):
    for name in ("before", "empty", "last"):
        load(package, name)
    reached = {Path(path).name: found for path, found in lines.reached().items()}
    assert reached == {"before.py": [1, 2], "empty.py": [], "last.py": [1], "module.py": []}

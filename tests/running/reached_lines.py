"""A pytest plugin that says which lines of Muster the tests reach: `-p tests.running.reached_lines`.

Each statement marks its line in memory that all forks share, so a line counts whichever of them reaches it. The line of
an `except` or a `case` counts when what is below it begins. Coverage's own tracer is called for each line of each
library as well, and Python 3.11 runs all code slowly under one: two thirds as much CPU again as the tests.

slipcover 1.1, a library that changes bytecode in place of tracing, was tried: numba cannot compile what it has changed,
and it can leave out whole files only; and each fork of a test, of which there are hundreds, is to leave it a file.
"""

import ast
import builtins
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from mmap import mmap
from pathlib import Path
from types import CodeType

import coverage
import pytest

_ROOT = Path(__file__).parents[2]
_MARKS = "__reached_lines__"
# numba compiles the bodies of these functions, and knows no memory that is shared.
_COMPILED = {"part", "entry_point"}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """See to the imports before the first of them, which is a conftest.py's."""
    lines = ReachedLines(_ROOT / "muster")
    lines.begin(pytest.MonkeyPatch())
    early_config.pluginmanager.register(lines, "reached-lines")


class ReachedLines:
    """Has a package's modules mark their lines, and reports those in the end."""

    def __init__(self, package: Path) -> None:
        self._starts: dict[str, int] = {}
        size = 0
        for path in sorted(package.rglob("*.py")):
            self._starts[str(path)] = size
            # A line's number is its place, from 1.
            size += path.read_bytes().count(b"\n") + 2
        # Anonymous memory is shared with each fork.
        self._marks = mmap(-1, size)

    def begin(self, patch: pytest.MonkeyPatch) -> None:
        """From now on, have each module of the package that is loaded mark its lines."""
        patch.setattr(builtins, _MARKS, self._marks, raising=False)
        usual = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
            start = self._starts.get(loader.path)
            return usual(loader, fullname) if start is None else _marking(loader, start)

        # Not by a finder: Alembic loads each migration by its path.
        patch.setattr(SourceFileLoader, "get_code", get_code)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("lines that the tests reach")
        # Coverage gets the lines that were reached; it finds the statements, and prints the report.
        report = coverage.Coverage(data_file=None, config_file=False)
        report.get_data().add_lines(self.reached())
        report.get_data().touch_files(self._starts)
        report.report(skip_covered=True, file=terminalreporter._tw)

    def reached(self) -> dict[str, list[int]]:
        """Return the numbers of the lines that were reached, by file."""
        ends = [*self._starts.values(), len(self._marks)][1:]
        return {
            path: [line for line, mark in enumerate(self._marks[start:end]) if mark]
            for (path, start), end in zip(self._starts.items(), ends, strict=True)
        }


def _marking(loader: SourceFileLoader, start: int) -> CodeType:
    """Return the code of a module whose statements mark their lines. It is kept nowhere: other runs want the usual."""
    tree = ast.parse(loader.get_data(loader.path), loader.path)
    compiled: CodeType = compile(_Marking(start).visit(tree), loader.path, "exec", dont_inherit=True)
    return compiled


class _Marking(ast.NodeTransformer):
    """Puts before each statement one that marks its line: `__reached_lines__[START + LINE] = 1`."""

    def __init__(self, start: int) -> None:
        self._start = start

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.FunctionDef) and any(_named(one) in _COMPILED for one in node.decorator_list):
            return node
        super().generic_visit(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, list(self._marked(node, name, value)))
        return node

    def _marked(self, node: ast.AST, name: str, statements: list[ast.stmt]) -> Iterator[ast.stmt]:
        if isinstance(node, ast.ExceptHandler):
            yield self._mark(node, node.lineno)
        elif isinstance(node, ast.match_case):
            yield self._mark(node.pattern, node.pattern.lineno)
        for place, statement in enumerate(statements):
            # What has to come first stays first: a docstring, and the words to the compiler.
            if name == "body" and place == 0 and _is_text(statement):
                yield statement
                continue
            lines = [one.lineno for one in (*getattr(statement, "decorator_list", ()), statement)]
            marks = [self._mark(statement, line) for line in lines]
            yield from (statement, *marks) if _is_future(statement) else (*marks, statement)

    def _mark(self, at: ast.AST, line: int) -> ast.stmt:
        marks = ast.Name(_MARKS, ast.Load())
        target = ast.Subscript(marks, ast.Constant(self._start + line), ast.Store())
        mark = ast.copy_location(ast.Assign([target], ast.Constant(1)), at)
        mark.end_lineno = mark.lineno
        return ast.fix_missing_locations(mark)


def _named(decorator: ast.expr) -> str | None:
    return decorator.id if isinstance(decorator, ast.Name) else None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"

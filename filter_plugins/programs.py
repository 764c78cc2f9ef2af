"""Build the programs that roles run on hosts: a script with the modules that it imports from the agents' package."""

import ast
from collections.abc import Callable
from pathlib import Path

from ansible.errors import AnsibleFilterError

_PACKAGE = "muster_agent"
_PLACE = Path(__file__).resolve().parents[1] / "plugins" / "module_utils"
_PROGRAM = """#!/usr/bin/env python3
# Built from several of Muster's files, so that the host needs none of them.
import sys, types
for name, package, text in {modules!a}:
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = package
    exec(compile(text, name, "exec"), module.__dict__)
exec(compile({script!a}, {name!a}, "exec"))
"""


def _program(path: str) -> str:
    """Return a script and the modules of the agents' package that it needs, as the text of one program."""
    file = Path(path)
    try:
        script = file.read_text(encoding="utf-8")
        if any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(ast.parse(script))):
            raise AnsibleFilterError(f"muster_program: {path} names __file__, but a program has no file on the host")
        modules: dict[str, tuple[str, str, str]] = {}
        _collect(script, "", modules)
    except (OSError, SyntaxError) as error:
        raise AnsibleFilterError(f"muster_program: {error}") from error
    return _PROGRAM.format(modules=list(modules.values()), script=script, name=file.name)


def _collect(text: str, package: str, modules: dict[str, tuple[str, str, str]]) -> None:
    """Add name, package and text of the modules that this text imports from, each after those that it needs itself."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        name = ".".join([*parents, node.module])
        if name.split(".")[0] != _PACKAGE or name in modules:
            continue
        module = _PLACE.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8")
        own = name.rpartition(".")[0]
        _collect(module, own, modules)
        modules[name] = (name, own, module)


class FilterModule:
    """`role_path ~ '/files/script.py' | muster_program`: the text for `python3 -c`, or for a file of its own."""

    def filters(self) -> dict[str, Callable[[str], str]]:
        return {"muster_program": _program}

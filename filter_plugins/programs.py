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
for name, text in {modules!a}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
exec(compile({script!a}, {name!a}, "exec"))
"""


def _program(path: str) -> str:
    """Return a script and the modules of the agents' package that it imports from, as the text of one program."""
    file = Path(path)
    try:
        script = file.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(script)))
        if any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes):
            raise AnsibleFilterError(f"muster_program: {path} names __file__, but a program has no file on the host")
        names = [
            node.module
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == _PACKAGE
        ]
        modules = [(name, _PLACE.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8")) for name in names]
    except (OSError, SyntaxError) as error:
        raise AnsibleFilterError(f"muster_program: {error}") from error
    return _PROGRAM.format(modules=modules, script=script, name=file.name)


class FilterModule:
    """`role_path ~ '/files/script.py' | muster_program`: the text for `python3 -c`, or for a file of its own."""

    def filters(self) -> dict[str, Callable[[str], str]]:
        return {"muster_program": _program}

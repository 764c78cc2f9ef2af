"""Programs that run on hosts: a script with the modules that it imports from the agents' package, as one text."""

import ast
import threading

from muster.shipped_files import ansible_root

_PACKAGE = "muster_agent"
# Two threads that parse at once can get a SystemError from Python 3.11 (CPython issue 106905).
_PARSING = threading.Lock()
_PROGRAM = """#!/usr/bin/env python3
# Built from several of Muster's files, so that the host needs none of them.
import sys, types
for name, package, text in {modules!a}:
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = package
    if "." in name:
        above, _, last = name.rpartition(".")
        setattr(sys.modules.setdefault(above, types.ModuleType(above)), last, module)
    exec(compile(text, name, "exec"), module.__dict__)
exec(compile({script!a}, {name!a}, "exec"))
"""


def agent_program(script: str, name: str) -> str:
    """Return a script called `name`, and the modules of the agents' package that it needs, as the text of one program.

    Raises OSError and SyntaxError.
    """
    modules: dict[str, tuple[str, str, str]] = {}
    with _PARSING:
        _collect(script, "", modules)
    return _PROGRAM.format(modules=list(modules.values()), script=script, name=name)


def _collect(text: str, package: str, modules: dict[str, tuple[str, str, str]]) -> None:
    """Add name, package and text of the modules that this text imports from, each after those that it needs itself."""
    place = ansible_root() / "plugins" / "module_utils"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom):
            continue
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*parents, *filter(None, [node.module])])
        # `from .` and `from ..folders import quota` name modules, `from .quota import counted` names one.
        is_package = place.joinpath(*source.split(".")).is_dir()
        names = [f"{source}.{alias.name}" for alias in node.names] if is_package else [source]
        for name in names:
            if name.split(".")[0] != _PACKAGE or name in modules:
                continue
            module = place.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8")
            own = name.rpartition(".")[0]
            _collect(module, own, modules)
            modules[name] = (name, own, module)

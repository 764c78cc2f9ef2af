"""Build the programs that roles run on hosts: a script with the modules that it imports from the agents' package."""

import ast
from collections.abc import Callable
from pathlib import Path

from ansible.errors import AnsibleFilterError

from muster.ansible_gateway.agent_program import agent_program


def _program(path: str) -> str:
    """Return a script and the modules of the agents' package that it needs, as the text of one program."""
    file = Path(path)
    try:
        script = file.read_text(encoding="utf-8")
        if any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(ast.parse(script))):
            raise AnsibleFilterError(f"muster_program: {path} names __file__, but a program has no file on the host")
        return agent_program(script, file.name)
    except (OSError, SyntaxError) as error:
        raise AnsibleFilterError(f"muster_program: {error}") from error


class FilterModule:
    """`role_path ~ '/files/script.py' | muster_program`: the text for `python3 -c`, or for a file of its own."""

    def filters(self) -> dict[str, Callable[[str], str]]:
        return {"muster_program": _program}

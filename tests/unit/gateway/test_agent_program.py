"""Programs that run on hosts, as one text."""

import ast
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from muster.ansible_gateway.agent_program import agent_program

SCRIPT = "from muster_agent.folders.files import main\nmain()\n"


def test_threads_that_build_a_program_at_once_do_not_parse_at_once(monkeypatch):
    """Python 3.11 may raise SystemError then: a user of a server that had just begun got an error."""
    both = threading.Barrier(2)
    inside: list[str] = []
    most: list[int] = []

    def parse(text):
        inside.append(text)
        most.append(len(inside))
        time.sleep(0.001)
        inside.pop()
        return parsed(text)

    def build(_number):
        both.wait()
        return agent_program(SCRIPT, "muster-files")

    parsed = ast.parse
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(ast, "parse", parse)
        first, second = pool.map(build, range(2))
    assert first == second
    assert max(most) == 1

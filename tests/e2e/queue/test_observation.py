"""A daemon's observations: by a program that stays on the agent, and by plays wherever there is none."""

import os
import resource
import signal
from pathlib import Path

from tests.control_node import ControlNode
from tests.waiting import eventually

# The fields of /proc/PID/stat behind the name: its parent, and the page faults of children that have ended.
_PARENT, _OF_CHILDREN = 1, 8
_LOADER = b"exec(compile(f.read("


def stat_of(process: int) -> list[int]:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return [int(field) if field.lstrip("-").isdigit() else 0 for field in fields]


def observers_of(daemon: int) -> set[int]:
    """Return the programs that a daemon has open on the agent, which is this machine."""
    found = set()
    for process in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        try:
            if _LOADER in Path(f"/proc/{process}/cmdline").read_bytes() and stat_of(process)[_PARENT] == daemon:
                found.add(process)
        except OSError:
            continue
    return found


def observed_at(node: ControlNode) -> str:
    return str(node.run("agents", "--json").json()[0]["observed_at"])


def test_what_stays_on_the_agent_reports_and_without_it_plays_do(new_node):
    node = new_node(observe_interval_s=1)
    node.start_daemon()
    assert node.daemon is not None
    daemon = node.daemon.pid
    (observer,) = eventually(lambda: observers_of(daemon))
    reports = stat_of(observer)[_OF_CHILDREN]
    eventually(lambda: stat_of(observer)[_OF_CHILDREN] > reports)
    # The agent hangs, as far as the program can tell: it is given up, and plays go on.
    os.kill(observer, signal.SIGSTOP)
    eventually(lambda: observers_of(daemon) == set())
    before = observed_at(node)
    eventually(lambda: observed_at(node) > before)
    node.start()


def test_nothing_stays_on_the_agent_when_the_daemon_has_gone(new_node):
    node = new_node()
    node.start_daemon()
    assert node.daemon is not None
    daemon = node.daemon.pid
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each agent takes several connections.
    assert resource.prlimit(daemon, resource.RLIMIT_NOFILE)[0] == min(most, 1 << 17)
    (observer,) = eventually(lambda: observers_of(daemon))
    node.daemon.kill()
    node.daemon.wait()
    node.daemon = None
    eventually(lambda: not Path(f"/proc/{observer}").exists())

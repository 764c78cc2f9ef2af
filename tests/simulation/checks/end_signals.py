"""The promise of `--signal`: what ends a session waits for its signal and the time after that (docs/use.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.session import Kernel, Session
from tests.simulation.containers import Container
from tests.simulation.hosts import Host

PLANNED = ("its time limit of ", "idle for ", "preempted by ", "ended by drain")
_LATE_S = 5.0
"""A signal that comes later than that after it was decided on has its time from then on."""
_MOMENT_S = 1.0


@dataclass(frozen=True)
class Signalled:
    """A kernel's command was sent a signal: the `number`-th of its launch."""

    at: float
    number: int
    host: Host
    container: Container


def is_planned(reason: str) -> bool:
    """Return whether a session that ends for this reason is to get its signal first."""
    return reason.startswith(PLANNED)


def time_of_signal(session: Session) -> float:
    """Return for how many seconds a session goes on after its signal."""
    return min(session.spec.signal_s, session.time_limit or session.spec.signal_s) - _MOMENT_S


def broken_signal(
    session: Session, sent: Sequence[Signalled], hosts: Mapping[str, Host], agents: Mapping[str, Agent]
) -> str:
    """Return what is wrong with a planned end that comes now; empty where nothing is."""
    for kernel in session.kernels:
        if not session.runs_command(kernel) or not _can_get_it(session, kernel, hosts, agents):
            continue
        got = [one for one in sent if one.container.kernel_name == kernel.name and _is_of(session, one)]
        since_s = [one.host.timeline.now - one.at for one in got]
        if not any(seconds >= time_of_signal(session) - _LATE_S for seconds in since_s):
            times = ", ".join(f"{seconds:.1f} s" for seconds in since_s)
            return f"the command of {kernel.name} got signals {times or 'never'} before"
    return ""


def _is_of(session: Session, one: Signalled) -> bool:
    return one.container.generation == session.generation


def _can_get_it(session: Session, kernel: Kernel, hosts: Mapping[str, Host], agents: Mapping[str, Agent]) -> bool:
    """Return whether the kernel runs on a host that is and was in order, and whose agent answers."""
    agent_id = kernel.allocation.agent_id if kernel.allocation else ""
    host, agent = hosts[agent_id], agents[agent_id]
    container = host.containers.get((session.id, kernel.name))
    runs = container is not None and container.state == "running" and container.generation == session.generation
    return runs and agent.state is AgentState.ALIVE and not host.was_in_trouble

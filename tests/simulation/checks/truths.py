"""The truth about sessions, as their hosts know it."""

from collections import defaultdict
from dataclasses import dataclass, field

from muster.core.model.session import Session
from tests.simulation.checks.end_signals import Signalled
from tests.simulation.containers import Container
from tests.simulation.hosts import Host


@dataclass(frozen=True)
class Begun:
    """A kernel's command has begun."""

    at: float
    generation: int
    kernel: str
    host: Host
    container: Container

    @property
    def busy_for_s(self) -> float:
        return self.host.witness.busy_for_s(self.container)


@dataclass
class Truth:
    """The truth about a session. `started` are its containers that ever ran, with their hosts.

    `ends` are kernel names with causes and exit codes, by generation, `gangs` the kernels of each launch, by name.
    `signals_decided` are when signals were decided on, or began late, by the control node's clock; `signalled` are
    those that its commands got. `priorities` are those that it had before updates.
    """

    submitted: Session
    gangs: dict[int, set[str]] = field(default_factory=dict)
    started: list[tuple[Host, Container]] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    ends: dict[int, list[tuple[str, str, int | None, bool]]] = field(default_factory=lambda: defaultdict(list))
    harms: set[str] = field(default_factory=set)
    failed_on: list[str] = field(default_factory=list)
    permanent_failure: bool = False
    signals_decided: list[float] = field(default_factory=list)
    signalled: list[Signalled] = field(default_factory=list)
    priorities: set[int] = field(default_factory=set)
    restarts: int = 0
    ended_by_user: bool = False

    def idle_s(self, generation: int) -> float:
        """Return for how long none of a launch's kernels has been in use; below 0 while one will be for some time."""
        begun = [begun for begun in self.begun if begun.generation == generation]
        return min(b.host.timeline.now - (b.container.started_at or 0.0) - b.busy_for_s for b in begun)

    def used_s(self, kernel: str, generation: int) -> float:
        """Return for how many seconds a kernel was in use in a launch, before its command began, too."""
        return sum(
            container.busy_s(host.witness.busy_for_s(container), host.timeline.now)
            for host, container in self.started
            if (container.kernel_name, container.generation) == (kernel, generation)
        )

    def ever_up(self, generation: int) -> set[str]:
        """Return the names of the kernels that have run in a launch."""
        return {container.kernel_name for _, container in self.started if container.generation == generation}

    def commands(self, generation: int) -> dict[str, tuple[int | None, bool]]:
        """Return, by kernel name, how its own command ended: the exit code, and whether it ran out of memory."""
        return {name: (code, oom) for name, cause, code, oom in self.ends[generation] if cause == "command"}

"""Simulated hosts: each keeps what a host keeps, and runs modules until something comes between."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from muster.contract.manifest import Manifest
from muster.core.images.names import familiar
from tests.simulation.containers import Container, ModuleFailedError, Network
from tests.simulation.modules import Modules, Steps
from tests.simulation.timeline import Chance, Timeline

_KILLED = 137
_DIED_WITH_ITS_HOST = 255
_A_MOMENT_S = 60.0

Done = Callable[[dict[str, Any] | ModuleFailedError | None], None]
"""Gets a module's result, how it failed, or None if it went with its host."""


class Witness(Protocol):
    """The witness of all that really happens on hosts."""

    def container_starts(self, host: "Host", container: Container) -> None: ...

    def command_begins(self, host: "Host", container: Container) -> None: ...

    def container_ends(self, host: "Host", container: Container, cause: str) -> None: ...

    def launch_fails(self, host: "Host", session_id: str, *, permanent: bool) -> None: ...

    def is_removed(self, host: "Host", container: Container) -> None: ...

    def is_signalled(self, host: "Host", container: Container) -> None: ...

    def remembers_nothing(self, host: "Host") -> None: ...

    def busy_for_s(self, container: Container) -> float:
        """Return for how many seconds after its start the container is in use."""


@dataclass(eq=False)
class Action:
    """A module under way; `locks` says whether it holds the host's lock, as `agent_converge` does."""

    steps: Steps
    done: Done
    locks: bool
    is_over: bool = False


@dataclass(eq=False)
class Host:
    """A host. `keys` say by session and kernel name which generation was released; a reboot loses them.

    `was_emptied` says that it has accepted no manifest since it lost its disk, `has_shrunk` that it ever had less than
    at first. `pulled` are the images that were ever pulled here. `dies_removing` is how often a module is still to die
    between removing containers and removing their files. `troubles` counts what keeps it from being in order at
    present, `well_since` is when that last ended.
    """

    id: str
    hardware: dict[str, Any]
    inventory: Mapping[str, Any]
    timeline: Timeline
    chance: Chance
    witness: Witness
    overlays: dict[str, Network]
    peers: Callable[[], Sequence["Host"]]
    is_up: bool = True
    is_cut: bool = False
    is_in_inventory: bool = True
    engine_runs: bool = True
    disk_is_full: bool = False
    launches_fail: bool = False
    stops_fail: bool = False
    removals_fail: str = ""
    was_emptied: bool = False
    has_shrunk: bool = False
    pulled: set[str] = field(default_factory=set)
    dies_removing: int = 0
    hangs_until: float = 0.0
    clock_wrong_by_s: float = 0.0
    next_launches: list[str] = field(default_factory=list)
    answers: deque[tuple[str, float]] = field(default_factory=deque)
    pulls_fail: str = ""
    pulls_take_s: float = 0.0
    troubles: int = 0
    well_since: float = -1e9
    boots: int = 1
    booted_at: float = -1e6
    generation: int | None = None
    database: str | None = None
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    spool: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    containers: dict[tuple[str, str], Container] = field(default_factory=dict)
    networks: dict[str, Network] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    locked_by: Action | None = None
    waiting: deque[Action] = field(default_factory=deque)
    numbers: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._first_images = self.hardware["images"]
        self._hanging: list[Action] = []

    @property
    def is_reachable(self) -> bool:
        return self.is_up and not self.is_cut

    @property
    def was_in_trouble(self) -> bool:
        """Return whether it is out of order by itself, or was a moment ago."""
        return self.troubles > 0 or self.timeline.now - self.well_since < _A_MOMENT_S

    @property
    def clock(self) -> float:
        """Return the time by its own clock."""
        return self.timeline.now + self.clock_wrong_by_s

    @property
    def uptime_s(self) -> float:
        return self.timeline.now - self.booted_at

    @property
    def manages_overlays(self) -> bool:
        return bool(self.hardware["swarm"]["manager"])

    # What the control node has it do

    def observe(self, done: Done) -> Action:
        """Run `agent_report`."""
        return self._begin(Action(Modules(self).observing(), done, locks=False))

    def converge(self, manifest: Manifest, done: Done) -> Action:
        """Run `agent_converge`, once no other run of it holds the lock."""
        return self._begin(Action(Modules(self).converging(manifest), done, locks=True))

    def _begin(self, action: Action) -> Action:
        if action.locks and self.locked_by is not None:
            self.waiting.append(action)
            return action
        if action.locks:
            self.locked_by = action
        self.actions.append(action)
        self._go_on(action)
        return action

    def _go_on(self, action: Action) -> None:
        if action.is_over:
            return
        if self.timeline.now < self.hangs_until:
            self._hanging.append(action)
            self.timeline.after(self.hangs_until - self.timeline.now, self._wakes)
            return
        try:
            delay = next(action.steps)
        except StopIteration as stop:
            self.ends(action, stop.value)
        except ModuleFailedError as error:
            self.ends(action, error)
        else:
            self.timeline.after(delay, lambda: self._go_on(action))

    def hangs_no_more(self) -> None:
        self.hangs_until = 0.0
        self._wakes()

    def _wakes(self) -> None:
        hanging, self._hanging = self._hanging, []
        for action in hanging:
            self._go_on(action)

    def ends(self, action: Action, result: dict[str, Any] | ModuleFailedError | None) -> None:
        """End a module, by itself or by another's hand; the next one gets the lock."""
        if action.is_over:
            return
        action.is_over = True
        action.steps.close()
        if action in self.actions:
            self.actions.remove(action)
        if action in self.waiting:
            self.waiting.remove(action)
        if self.locked_by is action:
            self.locked_by = None
            if self.waiting:
                following = self.waiting.popleft()
                self.locked_by = following
                self.actions.append(following)
                self.timeline.after(0.05, lambda: self._go_on(following))
        action.done(result)

    # What happens to it

    def goes_down(self) -> None:
        """Lose power: what runs ends, and what is in memory is gone."""
        self.is_up = False
        for action in [*self.actions, *self.waiting]:
            self.ends(action, None)
        self.keys.clear()
        self._all_end(_DIED_WITH_ITS_HOST, "reboot")

    def is_emptied(self) -> None:
        """Forget all that it had on its disks. It stays in the swarm."""
        self.was_emptied, self.generation, self.database = True, None, None
        self.spool.clear()
        self.containers.clear()
        self.networks.clear()
        self.hardware["images"] = self._first_images

    def loses_its_state(self) -> None:
        """Forget what it had accepted, and last words that nobody has fetched. Containers go on."""
        self.generation = self.database = None
        self.spool.clear()

    def is_pruned(self, *, all_images: bool) -> None:
        """Do as `docker system prune` does: remove what does not run, unused networks, and perhaps unused images."""
        for container in list(self.containers.values()):
            if container.state != "running":
                self.container_vanishes(container)
        used = {container.network for container in self.containers.values()}
        self.networks = {name: network for name, network in self.networks.items() if name in used}
        if self.manages_overlays:
            used = {c.network for host in self.peers() for c in host.containers.values() if c.state == "running"}
            for name in self.overlays.keys() - used:
                del self.overlays[name]
        if all_images:
            in_use = {name for c in self.containers.values() for name in (c.image, familiar(c.image))}
            self.hardware["images"] = [i for i in self.hardware["images"] if in_use & {i["id"], *i["tags"]}]

    def accepts(self, generation: int, databases: Sequence[str]) -> None:
        """Accept a manifest. Of earlier launches, nothing told before that they did not come before the loss."""
        if self.was_emptied:
            self.witness.remembers_nothing(self)
        self.was_emptied, self.generation = False, generation
        self.database = databases[0] if databases else self.database

    def comes_up(self) -> None:
        self.is_up, self.engine_runs = True, True
        self.boots += 1
        self.booted_at = self.timeline.now

    def engine_stops(self) -> None:
        """End the engine, and with it the containers."""
        self.engine_runs = False
        self._all_end(_KILLED, "engine")

    def _all_end(self, exit_code: int, cause: str) -> None:
        for container in list(self.containers.values()):
            if container.state == "running":
                self.container_ends(container, exit_code, cause)

    def container_ends(self, container: Container, exit_code: int, cause: str, *, oom_killed: bool = False) -> None:
        container.state, container.exit_code, container.oom_killed = "exited", exit_code, oom_killed
        container.finished_at, container.finished_clock = self.timeline.now, self.clock
        self.witness.container_ends(self, container, cause)

    def container_vanishes(self, container: Container) -> None:
        """Remove it by a hand that is not the control node's."""
        if container.state == "running":
            self.container_ends(container, _KILLED, "vanished")
        self.containers.pop((container.session_id, container.kernel_name), None)

    def running(self) -> list[Container]:
        return [container for container in self.containers.values() if container.state == "running"]

    def overdrawn_gpus(self) -> list[str]:
        """Return the GPUs of which running containers were made with more memory than there is."""
        held = [gpu for container in self.running() for gpu in container.gpus]
        overdrawn = []
        for gpu in self.hardware["gpus"]:
            shares = [share["mem_bytes"] for share in held if share["uuid"] == gpu["uuid"]]
            if sum(gpu["mem_bytes"] if share is None else share for share in shares) > gpu["mem_bytes"]:
                overdrawn.append(gpu["uuid"])
        return overdrawn

    def is_released(self, container: Container) -> bool:
        return self.keys.get(container.session_id, {}).get(container.kernel_name) == container.generation

    def holds(self) -> list[str]:
        """Return what of sessions is here, for people."""
        return [
            *(f"container {c.kernel_name} of {c.session_id[:8]} ({c.state})" for c in self.containers.values()),
            *(f"network {network.name}" for network in self.networks.values() if network.session_id),
            *(f"keys of {session_id[:8]}" for session_id in self.keys),
            *(f"last words of {session_id[:8]}" for session_id in self.spool),
        ]

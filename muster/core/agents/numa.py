"""Which cores of an agent are near to which of its GPUs and memory."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

_MILLI = 1000


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node. `cpus` as Linux lists them, such as `0-15,32-47`; empty for memory alone. `mem` in bytes."""

    node: int
    cpus: str
    mem: int

    @property
    def cpu(self) -> int:
        """Return the node's cores in milli-cores."""
        ranges = (part.partition("-") for part in self.cpus.split(",") if part)
        return sum(int(last or first) - int(first) + 1 for first, _, last in ranges) * _MILLI


def promised_by_node(kernels: Iterable[tuple[Sequence[int], int]]) -> dict[int, int]:
    """Return what kernels were promised on each node, from each one's nodes and milli-cores.

    A kernel on several nodes counts on each in equal parts.
    """
    promised: dict[int, int] = {}
    for numa_nodes, cpu in kernels:
        for node in numa_nodes:
            promised[node] = promised.get(node, 0) - (-cpu // len(numa_nodes))
    return promised


def cpuset(
    nodes: Sequence[NumaNode], chosen: Collection[int], promised: Mapping[int, int], cpu_of_all: int
) -> str | None:
    """Return the CPUs of the `chosen` nodes for one kernel; None where it may run on any.

    It may where the chosen nodes are all that there are. It also may where kernels, it among them, were promised more
    milli-cores on one of these nodes than that has. Bound to it, they would have less than requested, beside idle
    cores. An engine that has other than the nodes' cores (`cpu_of_all`) is itself confined to some, and would refuse a
    set with others.
    """
    with_cores = [node for node in nodes if node.cpus]
    near = [node for node in with_cores if node.node in chosen]
    if not near or len(near) < len(set(chosen)) or len(near) == len(with_cores):
        return None
    if sum(node.cpu for node in with_cores) != cpu_of_all or any(promised[node.node] > node.cpu for node in near):
        return None
    return ",".join(node.cpus for node in near)

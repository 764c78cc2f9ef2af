"""What kernels are given, from the rows in which compiled code wrote their places."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from muster.core.model.session import Allocation, GpuShare
from muster.core.scheduling.placement import columns
from muster.core.scheduling.placement.hardware import Hardware
from muster.core.values.columns import values_of


def key_of(place: list[int]) -> tuple[int, ...]:
    """Return the key of a kernel's place, without what is left over from larger ones."""
    return tuple(place[: columns.FIRST_WHOLE + place[columns.WHOLES]])


class Allocations:
    """The allocations on a group's agents. Kernels that are given the same share one."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._made: dict[tuple[int, ...], Allocation] = {}

    def at(self, places: Iterable[list[int]]) -> list[Allocation]:
        """Return the agent of each place, its GPUs as whole ones and parts, and their NUMA nodes."""
        made, head, wholes = self._made, columns.FIRST_WHOLE, columns.WHOLES
        # As `key_of`: a call for each kernel would take as long as all else here.
        keys = [tuple(place[: head + place[wholes]]) for place in places]
        try:
            return [made[key] for key in keys]
        except KeyError:
            new = [key for key in dict.fromkeys(keys) if key not in made]
        made.update(zip(new, self._new(new), strict=True))
        return [made[key] for key in keys]

    def _new(self, keys: Sequence[tuple[int, ...]]) -> list[Allocation]:
        known, head = self._hardware.gpus, columns.FIRST_WHOLE
        agent_ids, nodes, ends = list[str](), list[tuple[int, ...]](), [0]
        names, capacities, parts = list[str](), list[int](), dict[int, int]()
        for key in keys:
            agent_id, uuids, gpus = known[key[columns.AGENT]]
            used, part_of = key[head:], key[columns.PART_OF]
            names += [uuids[gpu] for gpu in used]
            capacities += [gpus.capacities[gpu] for gpu in used]
            if part_of != columns.NO_GPU:
                used = *used, part_of
                parts[len(names)] = key[columns.PART]
                names.append(uuids[part_of])
                capacities.append(gpus.capacities[part_of])
            agent_ids.append(agent_id)
            ends.append(len(names))
            nodes.append(gpus.nodes[used[0]] if len(used) == 1 else _nodes(gpus.nodes, used))
        amounts, wholes = list(capacities), [True] * len(names)
        for at, amount in parts.items():
            amounts[at], wholes[at] = amount, False
        shares = values_of(GpuShare, names, amounts, wholes, capacities)
        return values_of(Allocation, agent_ids, [tuple(shares[first:last]) for first, last in pairwise(ends)], nodes)


def _nodes(nodes: Sequence[tuple[int, ...]], used: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({node for gpu in used for node in nodes[gpu]}))

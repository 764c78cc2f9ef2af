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
        used, parts = list[tuple[str, int, tuple[int, ...]]](), list[int]()
        for key in keys:
            agent_id, gpus = known[key[columns.AGENT]]
            mine = [gpus[gpu] for gpu in key[head:]]
            part_of = key[columns.PART_OF]
            if part_of != columns.NO_GPU:
                uuid, _, node = gpus[part_of]
                mine.append((uuid, key[columns.PART], node))
                parts.append(len(used) + len(mine) - 1)
            used += mine
            agent_ids.append(agent_id)
            ends.append(len(used))
            nodes.append(mine[0][2] if len(mine) == 1 else _nodes(mine))
        wholes = [True] * len(used)
        for part in parts:
            wholes[part] = False
        shares = values_of(GpuShare, [uuid for uuid, _, _ in used], [amount for _, amount, _ in used], wholes)
        return values_of(Allocation, agent_ids, [tuple(shares[first:last]) for first, last in pairwise(ends)], nodes)


def _nodes(used: Sequence[tuple[str, int, tuple[int, ...]]]) -> tuple[int, ...]:
    return tuple(sorted({node for _, _, nodes in used for node in nodes}))

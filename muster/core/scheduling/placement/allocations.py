"""What a kernel is given, from the row in which compiled code wrote its place."""

from muster.core.model.session import Allocation, GpuShare
from muster.core.scheduling.placement import columns
from muster.core.scheduling.placement.hardware import Hardware


def key_of(place: list[int]) -> tuple[int, ...]:
    """Return the key of a kernel's place, without what is left over from larger ones."""
    return tuple(place[: columns.FIRST_WHOLE + place[columns.WHOLES]])


def allocation_at(hardware: Hardware, key: tuple[int, ...]) -> Allocation:
    """Return the agent of a place, its GPUs as whole ones and parts, and their NUMA nodes."""
    agent_id, gpus = hardware.gpus[key[columns.AGENT]]
    if len(key) == columns.FIRST_WHOLE + 1 and key[columns.PART_OF] == columns.NO_GPU:
        # By far the most frequent: it is worth a way of its own.
        uuid, capacity, node = gpus[key[columns.FIRST_WHOLE]]
        return Allocation(agent_id, (GpuShare(uuid, capacity, True),), node)
    used = [gpus[gpu] for gpu in key[columns.FIRST_WHOLE :]]
    shares = [GpuShare(uuid, capacity, True) for uuid, capacity, _ in used]
    if key[columns.PART_OF] != columns.NO_GPU:
        used.append(gpus[key[columns.PART_OF]])
        shares.append(GpuShare(used[-1][0], key[columns.PART], False))
    nodes = used[0][2] if len(used) == 1 else tuple(sorted({node for _, _, nodes in used for node in nodes}))
    return Allocation(agent_id, tuple(shares), nodes)

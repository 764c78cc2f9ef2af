"""What kernels hold of a group's agents, as arrays that are taken from what is free, or given back to it."""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from muster.core.model.session import Allocation
from muster.core.scheduling.placement import columns
from muster.core.scheduling.placement.compiled import Ints
from muster.core.scheduling.placement.hardware import Hardware
from muster.core.values.slots import Slots


class Holder(Protocol):
    """A kernel, or whatever else is known to have capacity."""

    @property
    def slots(self) -> Slots: ...
    @property
    def allocation(self) -> Allocation | None: ...


class Held(NamedTuple):
    """What some kernels hold: their `agents`, and `amounts` at `positions` of the flat array of what is free."""

    agents: Ints
    positions: Ints
    amounts: Ints


class Holdings:
    """What each of several sessions holds, in their order. It is worked out once, as far as somebody asks."""

    def __init__(self, hardware: Hardware, sessions: Iterable[Iterable[Holder]]) -> None:
        """`sessions` are the kernels of each."""
        self._hardware = hardware
        self._sessions = iter(sessions)
        self._agents: list[int] = []
        self._positions: list[int] = []
        self._amounts: list[int] = []
        # How much of these the sessions have up to each.
        self._ends = [(0, 0)]

    def of(self, first: int, end: int) -> Held:
        """Return what the sessions from `first` on hold, up to `end` or to the last of them."""
        for kernels in islice(self._sessions, max(0, end + 1 - len(self._ends))):
            self._add(kernels)
        last = len(self._ends) - 1
        agents, positions = self._ends[min(first, last)]
        agents_end, positions_end = self._ends[min(end, last)]
        return Held(
            np.array(self._agents[agents:agents_end], dtype=np.int64),
            np.array(self._positions[positions:positions_end], dtype=np.int64),
            np.array(self._amounts[positions:positions_end], dtype=np.int64),
        )

    def _add(self, kernels: Iterable[Holder]) -> None:
        hardware, width = self._hardware, columns.FIRST_GPU + self._hardware.width
        agents, positions, amounts = self._agents, self._positions, self._amounts
        for kernel in kernels:
            allocation = kernel.allocation
            agent = hardware.index.get(allocation.agent_id) if allocation else None
            if allocation is None or agent is None:
                continue
            first, slots = agent * width, kernel.slots
            agents.append(agent)
            positions += first + columns.CPU, first + columns.MEM, first + columns.KERNELS
            amounts += slots.cpu, slots.mem, -1
            _, uuids, gpus = hardware.gpus[agent]
            for share in allocation.gpus:
                gpu = uuids.index(share.uuid) if share.uuid in uuids else None
                if gpu is not None and not hardware.agents[agent].gpus[gpu].quarantine:
                    positions.append(first + columns.FIRST_GPU + gpu)
                    amounts.append(share.amount_of(gpus.capacities[gpu]))
        self._ends.append((len(agents), len(positions)))

"""`schedule(snapshot) -> Plan`: the whole decision, as a pure function."""

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from muster.core.model.plan import Plan, Waits
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.admission import Admission
from muster.core.scheduling.group_pass import GroupPass
from muster.core.scheduling.memory.pass_memory import PassMemory
from muster.core.values.garbage import without_garbage_collection

if TYPE_CHECKING:
    from muster.core.model.session import Session


def schedule(snapshot: Snapshot, memory: PassMemory | None = None, *, explains: bool = True) -> Plan:
    """Place what may and can start now; return it with the wait of every other pending session.

    With the `memory` of the pass before, what has not changed since is not worked out again. Without `explains`, what
    only people read is left out: the waits for free capacity say neither what is missing nor when they end.
    """
    memory = memory or PassMemory()
    snapshot = snapshot.with_free_places()
    known = memory.plan(snapshot)
    if known is not None:
        return known
    with without_garbage_collection():
        plan = _decided(snapshot, memory, explains=explains)
    memory.decided(snapshot, plan)
    return plan


def _decided(snapshot: Snapshot, memory: PassMemory, *, explains: bool) -> Plan:
    queues: dict[str, list[Session]] = {}
    for group, run in groupby(snapshot.pending, attrgetter("spec.resource_group")):
        queues.setdefault(group, []).extend(run)
    admission = Admission(snapshot)
    memories = memory.begin(snapshot, queues)
    passes = [
        GroupPass(snapshot, group, queues[group], admission, memories[group], explains=explains)
        for group in sorted(queues)
    ]
    for group_pass in passes:
        group_pass.work()
    # Limits hold across groups: what others may start with is not given away.
    for group_pass in passes:
        group_pass.grow()
        group_pass.explain()
    return Plan(
        tuple([placement for done in passes for placement in done.placements]),
        Waits([done.reasons for done in passes]),
        tuple([preemption for done in passes for preemption in done.preemptions]),
    )

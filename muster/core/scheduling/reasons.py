"""The scheduler's reasons for sessions that it does not place, in words and counts."""

from collections.abc import Collection, Mapping
from itertools import chain
from operator import attrgetter

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait, WaitCode, spell_causes
from muster.core.scheduling.placement import Gang, Misses
from muster.core.values.slots import format_slot, spell_slot

_MOST_NAMED = 3
_gpus, _quarantine = attrgetter("gpus"), attrgetter("quarantine")


def obstacle(agent: Agent, snapshot: Snapshot) -> str:
    """Return in one word why an agent gets no new sessions; empty when it may get some."""
    if agent.state is not AgentState.ALIVE:
        return agent.state.lower()
    if agent.drain_reason is not None:
        return "drained"
    if agent.is_suspect:
        return "suspect"
    if agent.problem:
        return "misconfigured"
    return "slow" if agent.id in snapshot.slow else ""


def no_agents(group: str) -> Wait:
    return Wait(WaitCode.NO_AGENTS, f"resource group {group} has no agents")


def never_fits(group: str, gang: Gang, misses: Misses, agents: Mapping[str, Agent]) -> Wait:
    """Return the wait of a gang that would not fit on empty agents, all back; `misses` are those of empty agents."""
    if not misses.considered:
        causes = spell_causes(misses.filtered)
        message = f"no agent of group {group} is of the kind that it asks for ({causes})"
        return Wait(WaitCode.NEVER_FITS, message, filtered=misses.filtered)
    absent = _absent(group, misses, agents)
    if absent:
        return _counted(WaitCode.NEVER_FITS, absent, misses)
    joined = any(agent.on_overlay for agent in agents.values())
    if gang.spread and not joined:
        what = f"any agent of group {group} has, and no overlay network joins its agents"
    else:
        what = f"the agents of group {group} have together" if gang.spread else f"any agent of group {group} has"
    message = f"it asks for more than {what} ({_lacks(gang, misses, agents)})"
    return _counted(WaitCode.NEVER_FITS, message, misses)


def busy(group: str, gang: Gang, misses: Misses, agents: Mapping[str, Agent], sick: str, *, no_overlay: bool) -> Wait:
    """Return the wait of a gang for which too little is free; `sick` are the `sick_gpus` of the agents."""
    causes = spell_causes(misses.filtered)
    if not misses.considered:
        message = f"no agent of group {group} takes sessions now ({causes})"
        return Wait(WaitCode.BUSY, message, filtered=misses.filtered)
    lacks = _lacks(gang, misses, agents)
    message = f"too little is free now; {lacks}"
    if no_overlay:
        message = f"too little is free now; {lacks}, and no overlay network joins agents: no swarm manager answers"
    if causes:
        message += f" (agents left out: {causes})"
    if sick and any(slots.gpu or slots.fgpu for slots in gang.slots):
        message += f"; in quarantine: {sick}"
    return _counted(WaitCode.BUSY, message, misses)


def sick_gpus(agents: Mapping[str, Agent]) -> str:
    """Return the names of the GPUs that get no sessions because they are sick; an empty text without any."""
    if not any(map(_quarantine, chain.from_iterable(map(_gpus, agents.values())))):
        return ""
    sick = [f"GPU {gpu.index} of {agent.id}" for agent in agents.values() for gpu in agent.gpus if gpu.quarantine]
    more = f" and {len(sick) - _MOST_NAMED} others" if len(sick) > _MOST_NAMED else ""
    return f"{', '.join(sick[:_MOST_NAMED])}{more}"


def behind(head: Session, *, delays: bool) -> Wait:
    if delays:
        message = f"starting it now would delay {head.name}, which is ahead of it in the queue"
    else:
        message = f"{head.name} is ahead of it in the queue"
    return Wait(WaitCode.BEHIND, message, waits_for=(head.id,))


def preempting(leaving: Collection[Session]) -> Wait:
    names = ", ".join(session.name for session in list(leaving)[:5])
    more = f" and {len(leaving) - 5} others" if len(leaving) > 5 else ""
    message = f"starts when {names}{more} of lower priority {'have' if len(leaving) > 1 else 'has'} ended"
    return Wait(WaitCode.PREEMPTING, message, waits_for=tuple(session.id for session in leaving))


def preempted_by(session: Session, owner: str) -> str:
    """Return the reason in the preempted session's story, which names no other user's session to its owner."""
    who = session.name if session.owner == owner else "another user's session"
    return f"preempted by {who}, which has priority {session.spec.priority}"


def moving(leaving: Collection[Session]) -> Wait:
    names = ", ".join(session.name for session in leaving)
    message = f"starts when {names} {'have' if len(leaving) > 1 else 'has'} made room and started anew elsewhere"
    return Wait(WaitCode.PREEMPTING, message, waits_for=tuple(session.id for session in leaving))


def _absent(group: str, misses: Misses, agents: Mapping[str, Agent]) -> str:
    """Return a message if no agent of the group has what it asks for at all; otherwise an empty text."""
    missing = {*misses.exhausted, *(misses.nearest.missing if misses.nearest else ())}
    for slot, else_there in (("gpu", "gives whole GPUs; ask for a share"), ("fgpu", "shares GPUs; ask for whole ones")):
        if slot in missing and not any(getattr(agent.capacity, slot) for agent in agents.values()):
            has_other = any(agent.capacity.gpu or agent.capacity.fgpu for agent in agents.values())
            return f"no agent of group {group} {else_there if has_other else 'has a GPU'}"
    return ""


def _counted(code: WaitCode, message: str, misses: Misses) -> Wait:
    return Wait(
        code,
        message,
        agents_considered=misses.considered,
        filtered=misses.filtered,
        exhausted=misses.exhausted,
        nearest=misses.nearest,
    )


def _lacks(gang: Gang, misses: Misses, agents: Mapping[str, Agent]) -> str:
    miss = misses.nearest
    if miss is not None and miss.missing:
        parts = [spell_slot(name, amount) for name, amount in miss.missing.items()]
        return f"agent {miss.agent_id} comes closest and lacks {' and '.join(parts)}"
    most = max(agent.most_cpu_of_a_kernel for agent in agents.values())
    if any(slots.cpu > most for slots in gang.slots):
        return f"a container asks for more CPU than an agent has cores: {format_slot('cpu', most)}"
    if misses.held:
        return f"the agents together have room for {misses.held} of its {len(gang.slots)} containers"
    if miss is not None:
        return f"its containers do not fit side by side on agent {miss.agent_id}, although the total would"
    if gang.spread:
        return f"the agents that take sessions now have room for none of its {len(gang.slots)} containers"
    return "no agent that takes sessions now is large enough"

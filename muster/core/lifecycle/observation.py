"""What agents' reports mean for the sessions on them.

A report speaks for its own agent only: of kernels on other agents the recorded facts count.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.core.agents.agent import Agent
from muster.core.gpus.check import GpuFinding, end_of_problem, gpu_findings
from muster.core.lifecycle.end_signals import limit_is_reached, may_leave
from muster.core.lifecycle.transitions import (
    Event,
    all_run,
    all_started,
    changed_facts,
    fail_begun,
    host_rebooted,
    transition,
)
from muster.core.model.reported import Reports, reported_kernels
from muster.core.model.session import Kernel, Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.values.units import exact_duration, spell_bytes

_FACTS = (
    *("container_id", "address", "ssh_port", "exit_code", "oom_killed", "started_at", "finished_at"),
    *("signals", "signal_receivers"),
)
_S = SessionState
_MOST_AHEAD_S = 10 * 365 * 86_400.0


def observe(snapshot: Snapshot, all_reports: Reports, asked: frozenset[str] = frozenset()) -> list[Event]:
    """Return what the reports (by agent id) and the time mean for the sessions that run.

    The time ends none on agents that are `asked`: its command may have ended well before.
    """
    events = []
    agents = {agent.id: agent for agent in snapshot.agents}
    for session in snapshot.placed:
        if session.state is not _S.RUNNING:
            continue
        holding = session.agents
        reports = {agent_id: all_reports[agent_id] for agent_id in holding if agent_id in all_reports}
        waits = not asked.isdisjoint(holding)
        if not reports and not _may_end(session, snapshot.now, waits=waits):
            continue
        reported = {k.id for k in session.kernels if k.allocation and k.allocation.agent_id in reports}
        findings = gpu_findings(session, reports, agents)
        seen = _with_gpu_problems(session, seen_kernels(session, reports), findings)
        excess = _took_too_much(session, reports, findings)
        by_the_time = None if waits else _by_the_time(session, snapshot.now)
        event = _ended(session, reported, seen, excess or by_the_time, snapshot.now, rebooted_agents(session, reports))
        if event is None and (changes := changed_facts(session.kernels, seen)):
            event = Event(session.id, snapshot.now, session.state, session.state, kernels=changes)
            news = [*_memory_news(session, changes), *_gpu_news(session, changes), *_signal_news(session, changes)]
            if reason := "; ".join(news):
                begins = _time_of_signal(session, changes, snapshot.now)
                event = transition(session, _S.RUNNING, reason, snapshot.now, **begins, kernels=changes)
        if event:
            events.append(event)
    return events


def _may_end(session: Session, now: float, *, waits: bool) -> bool:
    """Return whether a session of which no agent reports may end: by what is recorded of it, or by the time.

    One that `waits` for its agents does not end by the time. All sessions that run go through this in
    each turn, and hardly any ends.
    """
    has_exited = any(kernel.exited for kernel in session.kernels)
    return has_exited or (not waits and _by_the_time(session, now) is not None)


def adopt(session: Session, reports: Reports, now: float) -> Event | None:
    """Return what follows for a launch whose end nobody recorded; None: none of its commands has begun, launch it anew.

    `reports` show all that the launch can still lead to.
    """
    entries = reported_kernels(session, reports)
    seen = changed_facts(session.kernels, seen_kernels(session, reports))
    lived = {key: entry for key, entry in entries.items() if entry.state in {"running", "exited"}}
    missing = [kernel.name for kernel in session.kernels if kernel.id not in lived]
    if not missing and all(entry.released for entry in lived.values()):
        return all_run(session, seen, now)
    if session.may_have_begun:
        if rebooted := rebooted_agents(session, reports):
            return fail_begun(session, f"agent {min(rebooted)} was rebooted during the launch", now)
        vanished = _began_and_vanished(session, reports) or (missing[0] if missing else "")
        if vanished and has_begun(session, reports):
            reason = f"the container of {vanished} has vanished from its agent during the launch"
            return fail_begun(session, reason, now)
    waits = not missing and all(entry.released or entry.state == "running" for entry in lived.values())
    return all_started(session, seen, now) if waits else None


def has_begun(session: Session, reports: Reports) -> bool:
    """Return whether a command of the session's launch was let begin on one of these agents."""
    entries = reported_kernels(session, reports).values()
    return any(entry.released for entry in entries) or bool(_began_and_vanished(session, reports))


def _began_and_vanished(session: Session, reports: Reports) -> str:
    """Return a kernel whose command may have begun in the session's launch, and whose container is gone; else empty."""
    gone = {
        vanished.name
        for report in reports.values()
        for vanished in report.vanished
        if (vanished.session_id, vanished.generation) == (session.id, session.generation)
    }
    return next((kernel.name for kernel in session.kernels if kernel.name in gone), "")


def seen_kernels(session: Session, reports: Reports) -> dict[str, dict[str, Any]]:
    """Return the facts of this session's present launch in the reports, by kernel id.

    A container that runs, or whose release is still in its host's memory, lives in the host's present boot.
    """
    agents = {kernel.id: kernel.allocation.agent_id for kernel in session.kernels if kernel.allocation}
    boots = {kernel.id: kernel.boot_id for kernel in session.kernels}
    seen: dict[str, dict[str, Any]] = {}
    for kernel_id, entry in reported_kernels(session, reports).items():
        seen[kernel_id] = {**{name: getattr(entry, name) for name in _FACTS}, "container_state": entry.state}
        lives_now = entry.state == "running" or entry.released
        seen[kernel_id]["boot_id"] = reports[agents[kernel_id]].boot_id if lives_now else boots[kernel_id]
    return seen


def rebooted_agents(session: Session, reports: Reports) -> frozenset[str]:
    """Return the agents whose hosts were rebooted since kernels of the session were last known to live there."""
    entries = reported_kernels(session, reports)
    found = set()
    for kernel in session.kernels:
        agent_id = kernel.allocation.agent_id if kernel.allocation else ""
        boot_id = reports[agent_id].boot_id if agent_id in reports else None
        entry = entries.get(kernel.id)
        lives = entry is not None and (entry.state == "running" or entry.released)
        if not lives and boot_id and kernel.boot_id and boot_id != kernel.boot_id:
            found.add(agent_id)
    return frozenset(found)


def has_succeeded(session: Session, seen: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the session's command has ended well by what was seen of its kernels."""
    return _success(session, seen) is not None


def has_failed(facts: Mapping[str, Any]) -> bool:
    """Return whether a kernel has ended with an exit code other than 0."""
    return _has_ended(facts) and bool(facts["exit_code"])


def newest_accepted(agents: Iterable[Agent], now: float) -> int:
    """Return the newest generation that these agents say they have accepted, of those that are believed."""
    most = newest_believed(now)
    return max((g for agent in agents if (g := agent.report.generation or 0) <= most), default=0)


def newest_believed(now: float) -> int:
    """Return the highest generation that an agent is believed to know.

    One far ahead of the clock is not: there must be higher numbers left for everybody else.
    """
    return int((now + _MOST_AHEAD_S) * 1000)


def missed_the_launch(session: Session, reports: Reports) -> str:
    """Return an agent whose host was rebooted before the session's launch could reach it; empty where none was.

    An agent writes the generation of a manifest to its disk before it begins any of it. Nothing that was sent before
    its reboot can still arrive, nor anything that is older than a manifest that it has accepted since. A host that has
    lost its disk, as one without any loses it by each reboot, knows less than before the launch: it tells nothing.
    """
    for kernel in session.kernels:
        agent_id = kernel.allocation.agent_id if kernel.allocation else ""
        report = reports.get(agent_id)
        if report is None or not report.boot_id or not kernel.boot_id or report.boot_id == kernel.boot_id:
            continue
        known = kernel.agent_generation
        if known is None:
            continue
        accepted, before = report.generation or 0, report.generation_before
        missed_before = before is not None and known <= before < session.generation < accepted
        if missed_before or known <= accepted < session.generation:
            return agent_id
    return ""


def _with_gpu_problems(
    session: Session, seen: dict[str, dict[str, Any]], findings: Mapping[str, GpuFinding | None]
) -> dict[str, dict[str, Any]]:
    """Add each kernel's GPU problem in its first wording, since the amounts in it change all the time."""
    recorded = {kernel.id: kernel.gpu_problem for kernel in session.kernels}
    for kernel_id, finding in findings.items():
        before = recorded[kernel_id] or ""
        is_the_same = finding is not None and before.startswith(finding.topic)
        seen[kernel_id]["gpu_problem"] = before if is_the_same else finding.problem if finding else None
    return seen


def _gpu_news(session: Session, changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return lines for the session's story: which GPU problems began or ended with these changes."""
    changed = [(kernel, changes.get(kernel.id, {})) for kernel in session.kernels]
    return [str(facts["gpu_problem"] or end_of_problem(kernel)) for kernel, facts in changed if "gpu_problem" in facts]


def _memory_news(session: Session, changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return which kernels ran out of memory with these changes and go on, for the session's story."""
    return [_survived(kernel) for kernel in session.kernels if changes.get(kernel.id, {}).get("oom_killed")]


def _signal_news(session: Session, changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return to which kernels' commands a signal was sent, for the session's story."""
    sent = [k for k in session.kernels if session.gets_signal(k) and changes.get(k.id, {}).get("signals")]
    return [
        f"{session.spec.signal_name} was sent to {kernel.name}'s command"
        if changes[kernel.id].get("signal_receivers", kernel.signal_receivers)
        else f"no program of {kernel.name}'s command handles {session.spec.signal_name}, so none got it"
        for kernel in sent
    ]


def _time_of_signal(session: Session, changes: Mapping[str, Mapping[str, Any]], now: float) -> Mapping[str, Any]:
    """Return when the time of a signal that came late began: with these changes. Nothing of one that did not."""
    if session.signalled_at != now or not any("signals" in facts for facts in changes.values()):
        return {}
    return {"signalled_at": session.signalled_at, "leaves_at": session.leaves_at}


def _survived(kernel: Kernel) -> str:
    what_goes_on = "its command" if kernel.command is not None else "the container"
    return f"{kernel.name} ran out of memory: a process of it was killed, {what_goes_on} went on"


@dataclass(frozen=True, slots=True)
class _End:
    """An end of a session; `expects` are the fields on which it depends, and that users may change meanwhile."""

    reason: str
    result: Result
    exit_code: int | None = None
    expects: Mapping[str, Any] = field(default_factory=dict)


def _ended(
    session: Session,
    reported: set[str],
    seen: Mapping[str, Mapping[str, Any]],
    other: _End | None,
    now: float,
    rebooted: Collection[str],
) -> Event | None:
    """Return RUNNING → TERMINATING if the command ended, a kernel died or vanished, or for the `other` end.

    What a reboot leaves of a container says nothing of its command, unless that had ended well before.
    """
    recorded = {kernel.id: _recorded(kernel) for kernel in session.kernels if kernel.id not in reported}
    facts = {**recorded, **seen}
    end = _success(session, facts) if rebooted else _failure(session, facts) or _success(session, facts)
    if rebooted and end is None:
        return host_rebooted(session, min(rebooted), changed_facts(session.kernels, seen), now)
    end = end or other
    if end is None:
        return None
    event = transition(
        session,
        _S.TERMINATING,
        end.reason,
        now,
        result=end.result,
        exit_code=end.exit_code,
        kernels=changed_facts(session.kernels, seen),
    )
    return replace(event, expects=end.expects)


def _recorded(kernel: Kernel) -> dict[str, Any]:
    return {
        "container_state": kernel.container_state,
        "exit_code": kernel.exit_code,
        "oom_killed": kernel.oom_killed,
    }


def _decides(session: Session, kernel: Kernel) -> bool:
    """Return whether its end may be the session's."""
    return session.spec.is_batch and session.runs_command(kernel)


def _has_ended(facts: Mapping[str, Any]) -> bool:
    return facts["container_state"] in {"exited", "dead"}


def _failure(session: Session, facts_by_kernel: Mapping[str, Mapping[str, Any]]) -> _End | None:
    """Return the end of the first kernel in rank order that failed: the others often fail because of it."""
    for kernel in session.kernels:
        facts = facts_by_kernel.get(kernel.id)
        if facts is None:
            return _End(f"the container of {kernel.name} has vanished from its agent", Result.FAILURE)
        if not _has_ended(facts):
            continue
        code = int(facts["exit_code"] or 0)
        if facts["oom_killed"] and (code or kernel.command is None):
            return _End(f"{kernel.name} ran out of memory", Result.FAILURE, code)
        if _decides(session, kernel) and code:
            return _End(f"the command ended with exit code {code} in {kernel.name}", Result.FAILURE, code)
        if code or kernel.command is None:
            return _End(f"{kernel.name} ended unexpectedly with exit code {code}", Result.FAILURE, code)
    return None


def _success(session: Session, facts: Mapping[str, Mapping[str, Any]]) -> _End | None:
    """Return the end where every kernel that decides ended with exit code 0; a survived lack of memory is a note."""
    deciding = [kernel for kernel in session.kernels if _decides(session, kernel)]
    if not deciding or not all(_ended_well(facts.get(kernel.id)) for kernel in deciding):
        return None
    notes = [_survived(kernel) for kernel in session.kernels if facts.get(kernel.id, {}).get("oom_killed")]
    return _End("; ".join(["the command ended with exit code 0", *notes]), Result.SUCCESS, 0)


def _ended_well(facts: Mapping[str, Any] | None) -> bool:
    return facts is not None and _has_ended(facts) and not facts["exit_code"]


def _took_too_much(session: Session, reports: Reports, findings: Mapping[str, GpuFinding | None]) -> _End | None:
    ending = [finding.problem for finding in findings.values() if finding and finding.ends]
    problem = next(iter((*ending, *_over_disk_limit(session, reports))), None)
    return _End(problem, Result.FAILURE) if problem else None


def _over_disk_limit(session: Session, reports: Reports) -> Iterator[str]:
    """Yield a line for each kernel that has written more than its limit."""
    limit = session.spec.disk
    entries = reported_kernels(session, reports)
    for kernel in session.kernels:
        used = entries[kernel.id].disk_bytes if kernel.id in entries else None
        if limit is not None and used is not None and used > limit:
            has, may = spell_bytes(used), spell_bytes(limit)
            yield f"{kernel.name} has written {has} on its agent's disk, its disk limit is {may}"


def _by_the_time(session: Session, now: float) -> _End | None:
    return _time_is_up(session, now) or _has_to_leave(session, now)


def _time_is_up(session: Session, now: float) -> _End | None:
    if not limit_is_reached(session, now):
        return None
    reason = f"its time limit of {exact_duration(session.time_limit or 0)} is reached"
    return _End(reason, Result.FAILURE, expects={"extended_s": session.extended_s})


def _has_to_leave(session: Session, now: float) -> _End | None:
    """Return the end of a session that its agent's drain ends, once its signal's time is over."""
    if session.ends_for is None or not may_leave(session, now):
        return None
    return _End(session.ends_for, Result.FAILURE if session.spec.is_batch else Result.SUCCESS)

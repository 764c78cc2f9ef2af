"""Idle sessions, and warnings before a session's end: a state machine over observations.

A kernel is idle between two observations when its CPU, its network and its GPUs all stayed below the site's bounds.
Time without observations, such as while an agent was away, counts for nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from muster.core.lifecycle.end_signals import idle_end_waits, idle_signal_is_due, limit_signal_is_due, raised
from muster.core.lifecycle.transitions import Event, terminate, transition
from muster.core.model.session import Kernel, Result, Session, SessionState
from muster.core.usage.kernel import KernelUsage
from muster.core.values.units import exact_duration, format_duration

_S = SessionState


@dataclass(frozen=True, slots=True)
class IdleRules:
    """The idle limits of one resource group's sessions.

    `timeout_s` is None where sessions may be idle for ever. `cpu_percent` is of the kernel's cores, `gpu_percent` of
    each of its GPUs. Nothing is counted in the first `grace_s` of a session, nor between two observations that are
    further apart than `gap_s`. Users are warned `warn_before_s` before the end, whatever its cause.
    """

    timeout_s: float | None = None
    grace_s: float = 900.0
    warn_before_s: float = 600.0
    cpu_percent: float = 5.0
    network_bytes_per_s: float = 200.0
    gpu_percent: float = 5.0
    gap_s: float = 120.0

    def timeout_of(self, session: Session) -> float | None:
        """Return the session's own timeout, otherwise the site's. Whether it may differ was checked at submission."""
        if session.spec.no_idle_check:
            return None
        return self.timeout_s if session.spec.idle_timeout is None else session.spec.idle_timeout


def judged(before: KernelUsage | None, use: KernelUsage, kernel: Kernel, rules: IdleRules) -> KernelUsage:
    """Return the usage with the time since when the kernel is idle, None for one that is in use."""
    if before is None or use.seen_at == before.seen_at:
        return use
    if not _is_idle(use, kernel, rules):
        return replace(use, idle_since=None)
    if use.seen_at - before.seen_at > rules.gap_s:
        return replace(use, idle_since=use.seen_at)
    counted_from = max(before.seen_at, use.began_at + rules.grace_s)
    since = counted_from if before.idle_since is None else before.idle_since
    return replace(use, idle_since=since if since <= use.seen_at else None)


def _is_idle(use: KernelUsage, kernel: Kernel, rules: IdleRules) -> bool:
    """Return whether the kernel was idle between the samples. An unknown amount counts as in use."""
    if use.cpu_cores is None or use.net_bytes_per_s is None:
        return False
    gpus = len(kernel.allocation.gpus) if kernel.allocation else 0
    if gpus and (use.gpu_percent is None or use.gpu_percent >= rules.gpu_percent * gpus):
        return False
    return cpu_percent(use, kernel) < rules.cpu_percent and use.net_bytes_per_s < rules.network_bytes_per_s


def cpu_percent(use: KernelUsage, kernel: Kernel) -> float:
    """Return CPU usage in percent of the kernel's cores, as of the last two observations."""
    return 100.0 * (use.cpu_cores or 0.0) * 1000 / kernel.slots.cpu


def idle_for(session: Session, uses: Mapping[str, KernelUsage]) -> float | None:
    """Return for how many seconds all kernels have been idle; `usage` is by kernel id.

    None when one of them is in use, or was not observed.
    """
    found = [uses.get(kernel.id) for kernel in session.kernels]
    spans = [(use.idle_since, use.seen_at) for use in found if use and use.idle_since is not None]
    if len(spans) < len(session.kernels):
        return None
    return max(0.0, min(until for _, until in spans) - max(since for since, _ in spans))


def ends(session: Session, uses: Mapping[str, KernelUsage], rules: IdleRules, now: float) -> Event | None:
    """Return what follows for a RUNNING session: a warning, its withdrawal, a signal, or the session's end."""
    if limit_signal_is_due(session, now):
        reason = f"{session.spec.signal_name} goes to its command before its time limit is reached"
        return _of_limit(session, transition(session, _S.RUNNING, reason, now, **raised(session, now)))
    timeout = rules.timeout_of(session)
    idle = None if timeout is None else idle_for(session, uses)
    early = 0.0 if timeout is None else min(rules.warn_before_s, timeout / 2)
    if timeout is not None and idle is not None and idle >= timeout - early:
        return _idle(session, uses, idle, timeout, early, now)
    if session.warned_at is not None:
        reason = "it is in use again" if idle is None else "it was in use meanwhile"
        return transition(session, _S.RUNNING, reason, now, notice=None, warned_at=None)
    limit = session.time_limit
    if limit is None or session.started_at is None or session.notice is not None:
        return None
    at = session.started_at + limit
    # Of a session that is shorter than the warning is early there is nothing to warn of.
    if now < at - rules.warn_before_s or limit <= rules.warn_before_s:
        return None
    reason = f"its time limit of {exact_duration(limit)} is reached at {_clock(at)}"
    return _of_limit(session, transition(session, _S.RUNNING, reason, now, notice=_notice(session, reason)))


def _of_limit(session: Session, event: Event) -> Event:
    """Return an event that follows from the session's time limit: its user may have extended that meanwhile."""
    return replace(event, expects={"extended_s": session.extended_s})


def _idle(
    session: Session, uses: Mapping[str, KernelUsage], idle: float, timeout: float, early: float, now: float
) -> Event | None:
    """Return the end of an idle session, or the warning that comes `early` seconds before it."""
    why = f"idle for {format_duration(idle)} ({_rates(session, uses)})"
    if session.warned_at is None:
        at = now + max(early, timeout - idle)
        reason = f"{why}; it ends at {_clock(at)} unless it is used"
        return transition(session, _S.RUNNING, reason, now, notice=_notice(session, reason), warned_at=now)
    ends_at = max(now + timeout - idle, session.warned_at + early)
    if idle_signal_is_due(session, ends_at, now):
        reason = f"{session.spec.signal_name} goes to its command before it is ended for being idle"
        return transition(session, _S.RUNNING, reason, now, **raised(session, now))
    if idle < timeout or now < session.warned_at + early or idle_end_waits(session, now):
        return None
    return terminate(session, why, Result.FAILURE if session.spec.is_batch else Result.SUCCESS, now)


def _rates(session: Session, uses: Mapping[str, KernelUsage]) -> str:
    """Return the rates of the busiest kernel, each by itself."""
    pairs = [(kernel, uses[kernel.id]) for kernel in session.kernels]
    parts = [
        f"CPU {max(cpu_percent(use, kernel) for kernel, use in pairs):.1f} %",
        f"network {max(use.net_bytes_per_s or 0.0 for _, use in pairs):.0f} B/s",
    ]
    gpus = [use.gpu_percent for _, use in pairs if use.gpu_percent is not None]
    return ", ".join([*parts, *([f"GPU {max(gpus):.1f} %"] if gpus else [])])


def _notice(session: Session, reason: str) -> str:
    return f"session {session.name}: {reason}\n"


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"

"""The values that a session's page shows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from markupsafe import Markup

from muster.core.model.apps import AppState
from muster.core.model.session import FINAL, SessionState
from muster.core.spec.mounts import HOME
from muster.core.values.units import format_milli, format_moment, spell_bytes
from muster.core.whatif.explain import Surroundings, explain
from muster.core.whatif.start_estimate import start_estimate
from muster.service.questions.views import DependencyView, DetailsView, WhyView
from muster.service.reach.ssh_access import editor_host
from muster.service.reach.views import SessionAppView
from muster.service.sessions.views import GpuShareView, KernelView, SessionView
from muster.service.usage.live import CurrentUsage
from muster.service.usage.watched import KernelUsageHistory, SessionUsage
from muster.web.drawing.sparkline import sparkline

# A larger session's page would be too large with a sparkline in each row: it is sent every two seconds.
_MAX_SPARKLINES = 32
_HAS_CONTAINERS = frozenset({SessionState.RUNNING, SessionState.TERMINATING})


class Action(StrEnum):
    TERMINATE = "terminate"
    CANCEL = "cancel"
    RESTART = "restart"
    HOLD = "hold"
    RELEASE = "release"
    UPDATE = "update"
    RENAME = "rename"
    COMMIT = "commit"
    EXTEND = "extend"


def offered(session: SessionView) -> frozenset[Action]:
    """Return the actions that the session's state allows."""
    allowed: set[Action] = set()
    if session.state is SessionState.PENDING:
        allowed |= {Action.UPDATE, Action.CANCEL, Action.RELEASE if session.held_by is not None else Action.HOLD}
    elif session.state not in FINAL and not session.ends_for_good:
        allowed.add(Action.TERMINATE)
    if session.state is SessionState.RUNNING:
        allowed |= {Action.RESTART, Action.COMMIT}
        if session.time_limit_s is not None:
            allowed.add(Action.EXTEND)
    if session.state not in FINAL and session.state is not SessionState.TERMINATING and session.array_id is None:
        allowed.add(Action.RENAME)
    return frozenset(allowed)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The further lines on why a session waits, and when it starts if that is known."""

    lines: Sequence[str]
    start: str


def waiting(why: WhyView) -> Waiting | None:
    """Return why it waits; None for a session that does not wait or that no pass has tried yet."""
    if why.wait is None:
        return None
    around = Surroundings(time.time(), format_moment, why.names, why.unworked is None, why.left_out)
    lines = explain(why, why.wait, why.wait.position or 0, around, advice=False)
    return Waiting(lines, start_estimate(why.wait, around))


@dataclass(frozen=True, slots=True)
class Meter:
    """A usage with its limit; `line` is a sparkline of the last minutes."""

    value: float
    most: float
    text: str
    line: Markup


@dataclass(frozen=True, slots=True)
class Row:
    """A container; values that are not measured are None or empty."""

    kernel: KernelView
    agent: str
    state: str
    has_log: bool
    has_terminal: bool
    cpu: Meter | None
    mem: Meter | None
    network: str
    gpu: str
    problem: str
    shares: Sequence[str]


def refreshes_s(session: SessionView) -> int:
    """Return the interval at which its containers are refreshed, also without a change; 0: never."""
    if session.state in FINAL:
        return 0
    return 2 if len(session.kernels) <= _MAX_SPARKLINES else 10


def rows(session: SessionView, use: SessionUsage) -> list[Row]:
    """Return a row for each kernel, in the order of their ranks."""
    has_line = len(session.kernels) <= _MAX_SPARKLINES
    return [_row(session, kernel, use.kernels.get(kernel.id), has_line=has_line) for kernel in session.kernels]


def _row(session: SessionView, kernel: KernelView, watched: KernelUsageHistory | None, *, has_line: bool) -> Row:
    now = watched.now if watched else None
    problems = (now.problem if now else "", kernel.gpu_problem or "")
    return Row(
        kernel=kernel,
        agent=kernel.agent or "",
        state=_state(kernel),
        has_log=session.generation > 0 and session.state in {*_HAS_CONTAINERS, *FINAL},
        has_terminal=session.state is SessionState.RUNNING and not kernel.exited,
        cpu=_cpu(kernel, watched, has_line=has_line) if watched else None,
        mem=_mem(kernel, watched, has_line=has_line) if watched else None,
        network=_network(now) if now else "",
        gpu=_gpu(now) if now else "",
        problem="; ".join(problem for problem in problems if problem),
        shares=[_share(share) for share in kernel.gpus],
    )


def _state(kernel: KernelView) -> str:
    parts = [kernel.state or ("ended" if kernel.exit_code is not None else "no container")]
    if kernel.exit_code is not None:
        parts.append(f"exit code {kernel.exit_code}")
    if kernel.oom_killed:
        parts.append("out of memory")
    return ", ".join(parts)


def _cpu(kernel: KernelView, watched: KernelUsageHistory, *, has_line: bool) -> Meter | None:
    use, most = watched.now.use, kernel.slots.cpu / 1000
    if use is None or use.cpu_cores is None:
        return None
    points = [(sample.at, sample.cpu_cores) for sample in watched.samples] if has_line else []
    text = f"{use.cpu_cores:.2f} of {format_milli(kernel.slots.cpu)} CPU"
    line = sparkline(points, most, f"CPU of {kernel.name} over the last minutes; now {text}")
    return Meter(use.cpu_cores, most, text, line)


def _mem(kernel: KernelView, watched: KernelUsageHistory, *, has_line: bool) -> Meter | None:
    use, most = watched.now.use, kernel.slots.mem
    if use is None or use.mem_bytes is None:
        return None
    points = [(s.at, None if s.mem_bytes is None else float(s.mem_bytes)) for s in watched.samples] if has_line else []
    text = f"{spell_bytes(use.mem_bytes)} of {spell_bytes(most)}"
    line = sparkline(points, most, f"Memory of {kernel.name} over the last minutes; now {text}")
    return Meter(use.mem_bytes, most, text, line)


def _network(now: CurrentUsage) -> str:
    if now.net_rx_per_s is None or now.net_tx_per_s is None:
        return ""
    return f"{spell_bytes(round(now.net_rx_per_s))}/s in, {spell_bytes(round(now.net_tx_per_s))}/s out"


def _gpu(now: CurrentUsage) -> str:
    percent = "" if now.gpu_percent is None else f"{now.gpu_percent:.0f} % of the GPU"
    memory = "" if now.gpu_mem_bytes is None else f"{spell_bytes(now.gpu_mem_bytes)} of memory"
    return ", ".join(part for part in (percent, memory) if part)


def _share(share: GpuShareView) -> str:
    """Return a text such as `GPU 1: 0.5 fGPU, 2G of memory`."""
    name = f"GPU {share.uuid} (lost)" if share.index is None else f"GPU {share.index}"
    amount = "whole GPU" if share.is_device else f"{format_milli(share.amount)} fGPU"
    memory = "" if share.is_device or share.mem_bytes is None else f", {spell_bytes(share.mem_bytes)} of memory"
    return f"{name}: {amount}{memory}"


@dataclass(frozen=True, slots=True)
class AppRow:
    """An app; `can_open` unless nothing of it runs."""

    name: str
    port: int
    state: str
    reason: str
    can_open: bool


def app_rows(apps: Sequence[SessionAppView]) -> list[AppRow]:
    return [
        AppRow(
            name=app.name,
            port=app.port,
            state=app.state or "its session is not running",
            reason=app.reason or "",
            can_open=app.state is not None and app.state is not AppState.MISSING,
        )
        for app in apps
    ]


def command_lines(session: SessionView) -> list[tuple[str, str]]:
    """Return command lines about the session, each with its purpose."""
    name = session.name
    lines = [("Show it", f"muster show {name}")]
    if session.state is SessionState.PENDING:
        lines.append(("Explain why it waits", f"muster why {name}"))
    elif session.state is SessionState.RUNNING:
        lines += [
            ("Open a shell in main1", f"muster ssh {name}"),
            ("Run a command in main1", f"muster exec {name} -- hostname"),
            ("Follow its log", f"muster logs {name} -f"),
            ("Let VS Code, JetBrains and ssh find it", "muster ssh-config"),
        ]
    elif session.generation:
        lines.append(("Print its log", f"muster logs {name}"))
    return lines


def editor_url(session: SessionView) -> str:
    """Return the URL with which VS Code opens main1 of a running session; empty for any other session.

    The user's machine needs the entry that `muster ssh-config` writes.
    """
    if session.state is not SessionState.RUNNING:
        return ""
    return f"vscode://vscode-remote/ssh-remote+{editor_host(session.name)}{HOME}"


def dependencies(details: DetailsView) -> list[tuple[str, list[DependencyView], int]]:
    """Return what the session depends on: for each kind the visible sessions, and the number of others."""
    kinds = {"After the start of": "after", "After success of": "after_ok", "After the end of": "after_any"}
    found = []
    for kind, field in kinds.items():
        ids = details.spec[field]
        visible = [session for session in details.dependencies if session.id in ids]
        if ids:
            found.append((kind, visible, len(ids) - len(visible)))
    return found

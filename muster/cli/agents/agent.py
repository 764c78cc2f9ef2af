"""`agent show`, `agent drain`, `agent resume`."""

from collections.abc import Mapping, Sequence

import click

from muster.cli.agents.drain_plan import print_drain_plan
from muster.cli.agents.resources import agent_state
from muster.cli.audit import note_no_change, note_sessions
from muster.cli.context import current_user, json_option, opened_service, warn_if_unworked
from muster.cli.output import age, or_dash, print_json, print_table
from muster.cli.progress import WaitedTooLongError, wait_timeout_option
from muster.core.agents.agent import Agent, Gpu, leftovers_line
from muster.core.values.errors import BadInputError
from muster.core.values.slots import SLOT_NAMES, format_slot, format_slots
from muster.core.values.units import format_bytes, format_milli, timestamp
from muster.service.agents.agents import AgentOccupancy
from muster.service.agents.views import AgentSessionView, AgentView
from muster.service.service import Service


def complete_agent(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with opened_service() as service:
            return [agent.id for agent in service.agents.all() if agent.id.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell's completion has nowhere to show an error
        return []


@click.group("agent")
def agent_group() -> None:
    """Show an agent, take it out of service, put it back."""


@agent_group.command()
@click.argument("name", shell_complete=complete_agent)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show an agent: what it has, what is free, its images, and what runs on it."""
    with opened_service() as service:
        (use,) = service.agents.named([name])
        warn_if_unworked(service)
    if as_json:
        print_json(
            {
                **AgentView.of(use).as_json(),
                "swarm": use.agent.report.swarm.model_dump(),
                "images": _images(use.agent),
                "not_removed": [leftover.model_dump() for leftover in use.agent.report.leftovers or ()],
            }
        )
        return
    for label, value in _facts(use).items():
        if value is not None and value != "":
            click.echo(f"{label + ':':<13}{value}")
    click.echo()
    print_table(
        ("SLOT", "CAPACITY", "FREE"),
        [
            (slot, format_slot(slot, capacity), format_slot(slot, getattr(use.free, slot)))
            for slot in SLOT_NAMES
            if (capacity := getattr(use.agent.capacity, slot))
        ],
    )
    click.echo()
    print_table(
        ("SESSION", "OWNER", "STATE", "KERNEL", "RESOURCES"),
        [
            (session.name, session.owner, session.state, kernel.name, format_slots(kernel.slots))
            for session, kernel in use.kernels
        ],
    )
    if use.agent.gpus:
        click.echo()
        print_table(
            ("GPU", "UUID", "MODEL", "MEMORY", "UNITS", "NUMA", "PROBLEM"),
            [
                (
                    gpu.index,
                    gpu.uuid,
                    gpu.model,
                    format_bytes(gpu.mem),
                    _units(gpu),
                    or_dash(gpu.numa_node),
                    "; ".join(filter(None, (gpu.quarantine, gpu.warning))) or "-",
                )
                for gpu in use.agent.gpus
            ],
        )
    if len(use.agent.numa) > 1:
        click.echo()
        print_table(
            ("NUMA", "CPUS", "MEMORY"),
            [(node.node, node.cpus or "-", format_bytes(node.mem)) for node in use.agent.numa],
        )
    click.echo()
    print_table(
        ("IMAGE", "ID", "SIZE"),
        [
            (tag, image.id.removeprefix("sha256:")[:12], format_bytes(image.size_bytes))
            for image in use.agent.report.images
            for tag in image.tags
        ],
    )


def _facts(use: AgentOccupancy) -> dict[str, object]:
    report = use.agent.report
    since = use.agent.unreachable_since
    return {
        "Agent": use.agent.id,
        "Group": use.agent.resource_group,
        "Labels": ", ".join(f"{name}={value}" for name, value in sorted(use.agent.labels.items())),
        "Rack": use.agent.rack,
        "Zone": use.agent.zone,
        "State": agent_state(use),
        "Problem": "; ".join(filter(None, (use.agent.problem, use.kept))),
        "Since": f"{timestamp(since)} ({age(since)})" if since is not None else None,
        "Drained": use.agent.drain_reason,
        "Suspect": _suspect(use.agent),
        "Not removed": leftovers_line(use.agent),
        "Observed": f"{timestamp(use.agent.observed_at)} ({age(use.agent.observed_at)} ago)",
        "Host": f"{report.hostname or '?'}, {report.os or '?'}",
        "Docker": report.docker.version,
        "Runtime": report.runtime,
        "fGPU": use.agent.fgpu_obstacle or report.fgpu,
        "Swarm": f"{report.swarm.state}{', manager' if report.swarm.manager else ''}"
        f"{', can encrypt' if report.swarm.encrypts else ''}",
    }


def _suspect(agent: Agent) -> str:
    record = agent.launch_record
    if record.suspect_until is None:
        return ""
    sessions = ", ".join(failure.session_id[:8] for failure in record.failures)
    return f"{record.reason} ({sessions}); until {timestamp(record.suspect_until)}"


def _units(gpu: Gpu) -> str:
    return format_milli(gpu.capacity) if gpu.units else "-"


def _images(agent: Agent) -> list[dict[str, object]]:
    return [image.model_dump(mode="json") for image in agent.report.images]


@agent_group.command("drain")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_agent)
@click.option(
    "--reason", metavar="TEXT", help="Shown with the agent, and by `muster why` of sessions that wait for it."
)
@click.option("--wait", is_flag=True, help="Return when no session is left on them.")
@wait_timeout_option("--timeout", "they stay drained")
@click.option(
    "--end-sessions", is_flag=True, help="End the sessions on them, instead of letting them run to their end."
)
@click.option("--plan", is_flag=True, help="Only print its effect on the sessions there and on those that wait.")
@json_option
def drain_(
    names: tuple[str, ...],
    reason: str | None,
    wait: bool,
    timeout: float | None,
    end_sessions: bool,
    plan: bool,
    as_json: bool,
) -> None:
    """Place no more sessions on agents. Those that run there go on, unless --end-sessions is given."""
    if plan:
        if wait or end_sessions or reason:
            raise BadInputError("--plan: it changes nothing; leave out --wait, --end-sessions and --reason")
        with opened_service() as service:
            note_no_change()
            print_drain_plan(service.what_if().planned_drain(names), as_json=as_json)
        return
    if timeout is not None and not wait:
        raise BadInputError("--timeout: nothing is waited for; give --wait too")
    with opened_service() as service:
        changed = service.agents.drain(names, (reason or "").strip(), current_user())
        on_them = {s.id for use in service.agents.named(names) for s in use.sessions} if end_sessions else ()
        # Also without sessions: the wait may be long, and end with the terminal.
        note_sessions(service.commands.end_for_drain(sorted(on_them), current_user()))
        warn_if_unworked(service)
        if wait:
            _wait_until_empty(service, names, timeout, quiet=as_json)
        _answer(service, changed, as_json=as_json)


@agent_group.command("resume")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_agent)
@click.option("--gpu", metavar="INDEX|UUID", help="Only this GPU, which is in quarantine; its agent stays as it is.")
@json_option
def resume_(names: tuple[str, ...], gpu: str | None, as_json: bool) -> None:
    """Place sessions on drained or suspect agents again, or on a GPU in quarantine."""
    with opened_service() as service:
        if gpu is None:
            changed = service.agents.resume(names)
        elif len(names) > 1:
            raise BadInputError("--gpu: it is about one agent; name one")
        else:
            changed = {names[0]: service.agents.resume_gpu(names[0], gpu)}
        _answer(service, changed, as_json=as_json)
        warn_if_unworked(service)


def _wait_until_empty(service: Service, names: Sequence[str], timeout_s: float | None, *, quiet: bool) -> None:
    """Raises WaitedTooLongError."""
    left = ""
    try:
        for uses in service.agents.until_empty(names, timeout_s):
            left = ", ".join(f"{session.name} on {use.agent.id}" for use in uses for session in use.sessions)
            if left and not quiet:
                click.echo(f"waiting for {left}", err=True)
    except TimeoutError:
        raise WaitedTooLongError(f"still waiting for {left}; --end-sessions ends them") from None


def _answer(service: Service, changed: Mapping[str, bool], *, as_json: bool) -> None:
    uses = [use for use in service.agents.in_use() if use.agent.id in changed]
    if as_json:
        print_json(
            [
                {
                    "id": use.agent.id,
                    "changed": changed[use.agent.id],
                    "drain_reason": use.agent.drain_reason,
                    "sessions": [AgentSessionView.of(session) for session in use.sessions],
                }
                for use in uses
            ]
        )
        return
    for use in uses:
        on_it = f"; {len(use.sessions)} sessions are on it" if use.sessions else ""
        reason = f" ({use.agent.drain_reason})" if use.agent.drain_reason else ""
        click.echo(f"{use.agent.id} is {agent_state(use)}{reason}{on_it}")
        for gpu in use.agent.gpus:
            if gpu.quarantine:
                click.echo(f"GPU {gpu.index} of {use.agent.id} is in quarantine: {gpu.quarantine}")

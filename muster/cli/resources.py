"""`agents`, `images`, and copying an image to agents."""

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from muster.cli.context import json_option, sessions
from muster.cli.gpu_map import print_gpu_map
from muster.cli.output import age, print_json, print_table
from muster.core.agent import Agent
from muster.core.errors import BadInputError
from muster.core.slots import format_slot
from muster.service.agents import AgentUse, agent_use_json, agents_in_use, holders
from muster.service.catalog import load_catalog
from muster.service.gpu_map import gpu_use_json, gpu_uses
from muster.service.wake import AGENTS, wake

if TYPE_CHECKING:
    from muster.service.images import Synced


@click.command()
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only agents with this label; all of those given."
)
@click.option("--gpus", "shows_gpus", is_flag=True, help="Their GPUs instead: who has which share, and what is free.")
@json_option
def agents(labels: tuple[str, ...], shows_gpus: bool, as_json: bool) -> None:
    """List agents: what they have, and what is free."""
    wanted = dict(_label(text) for text in labels)
    with sessions() as service:
        known = agents_in_use(service.snapshot())
    uses = [use for use in known if wanted.items() <= use.agent.labels.items()]
    if as_json:
        print_json([*map(gpu_use_json, gpu_uses(uses))] if shows_gpus else [*map(agent_use_json, uses)])
        return
    if shows_gpus:
        print_gpu_map(gpu_uses(uses))
    else:
        _print_agents(uses)
    if not known:
        click.echo("no agent has been observed yet; `muster pass` observes those of the inventory", err=True)
    elif not uses:
        click.echo(f"no agent has {' and '.join(labels)}; `muster agent show AGENT` tells an agent's labels", err=True)


def _print_agents(uses: Sequence[AgentUse]) -> None:
    print_table(
        ("AGENT", "GROUP", "STATE", "CPU FREE", "MEM FREE", "GPU FREE", "FGPU FREE", "KERNELS", "SEEN", "PROBLEM"),
        [
            (
                use.agent.id,
                use.agent.resource_group,
                agent_state(use),
                *(_free(use, name) for name in ("cpu", "mem", "gpu", "fgpu")),
                len(use.kernels),
                f"{age(use.agent.observed_at)} ago",
                "; ".join(filter(None, (use.agent.problem, _fgpu_problem(use.agent)))) or "-",
            )
            for use in uses
        ],
    )


def _fgpu_problem(agent: Agent) -> str:
    """Empty where its GPUs are cut as the site wants it."""
    return f"fgpu: {agent.fgpu_obstacle}" if agent.fgpu_obstacle else ""


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadInputError(f"--label: {text!r} has no =; write NAME=VALUE")
    return name, value


def agent_state(use: AgentUse) -> str:
    """One word for awk, flags behind a comma as in Kubernetes' `Ready,SchedulingDisabled`."""
    return ",".join(part for part in (use.agent.state.value, use.drain) if part)


def _free(use: AgentUse, name: str) -> str:
    capacity = getattr(use.agent.capacity, name)
    return f"{format_slot(name, getattr(use.free, name))}/{format_slot(name, capacity)}" if capacity else "-"


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def images(ctx: click.Context, as_json: bool) -> None:
    """List the image catalog, and which agents hold each image."""
    if ctx.invoked_subcommand is not None:
        return
    with sessions() as service:
        known = service.snapshot().agents
        catalog = load_catalog(service.settings.catalog)
        default = service.settings.default_image
    entries = [(image, holders(known, image.reference)) for image in catalog.images]
    if as_json:
        print_json(
            [
                {
                    **image.model_dump(mode="json"),
                    "default": image.reference == default,
                    "agents": list(held),
                    "image_ids": sorted(set(held.values())),
                }
                for image, held in entries
            ]
        )
        return
    print_table(
        ("NAME", "REFERENCE", "AGENTS", "DESCRIPTION"),
        [
            (
                f"{image.name}{' (default)' if image.reference == default else ''}",
                image.reference,
                _held_by(held, len(known)),
                image.description,
            )
            for image, held in entries
        ],
    )


def _held_by(held: Mapping[str, str], known: int) -> str:
    """Agents that were provisioned at different times may hold different images under one name."""
    versions = len(set(held.values()))
    return f"{len(held)}/{known}" + (f",{versions}-VERSIONS" if versions > 1 else "")


@images.command()
@click.argument("reference")
@click.option("--from", "source", metavar="AGENT", help="Copy from this agent; from any that has it by default.")
@click.option("--to", "targets", metavar="AGENT[,AGENT...]", multiple=True, help="Only to these agents.")
@click.option("--group", metavar="GROUP", help="Only to the agents of this resource group.")
@json_option
def sync(reference: str, source: str | None, targets: tuple[str, ...], group: str | None, as_json: bool) -> None:
    """Copy an image to the agents that lack it, or have another under that name; no registry is needed.

    REFERENCE is a name in the catalog or an image reference. By default it goes to all agents that answer. Exit code 1
    when one of them could not be given it.
    """
    from muster.service.images import image_sync, synced  # noqa: PLC0415 - the Docker SDK loads slowly

    names = [name.strip() for value in targets for name in value.split(",") if name.strip()]
    if names and group is not None:
        raise BadInputError("--group: it was given together with --to; use one of them")
    with sessions() as service:
        reference = load_catalog(service.settings.catalog).reference_of(reference)
        wanted = image_sync(service.snapshot().agents, reference, source_id=source, target_ids=names, group=group)
    progress = _ProgressLine(shown=sys.stderr.isatty() and not as_json)
    outcomes = synced(wanted, progress.note, progress.finished if not as_json else lambda _outcome: None)
    changed = any(outcome.changed for outcome in outcomes)
    if changed:
        with sessions() as service:
            wake(service.settings, service.store, AGENTS)
    if as_json:
        print_json(
            {
                "reference": wanted.reference,
                "image_id": wanted.image_id,
                "from": wanted.source.id,
                "changed": changed,
                "targets": [{"agent": o.agent_id, "changed": o.changed, "error": o.error} for o in outcomes],
            }
        )
    elif not changed and not any(outcome.error for outcome in outcomes):
        click.echo(f"nothing to do: {len(outcomes)} agents have {wanted.reference} as {wanted.source.id} has it")
    if any(outcome.error for outcome in outcomes):
        raise click.exceptions.Exit(1)


class _ProgressLine:
    """One line on a terminal that says how far each copy is; elsewhere only what came of each."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._percent: dict[str, int] = {}

    def note(self, agent_id: str, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        with self._lock:
            if self._percent.get(agent_id) != percent:
                self._percent[agent_id] = percent
                self._draw()

    def finished(self, outcome: "Synced") -> None:
        with self._lock:
            self._percent.pop(outcome.agent_id, None)
            self._clear()
            if outcome.error:
                click.echo(f"muster: {outcome.agent_id}: {outcome.error}", err=True)
            else:
                click.echo(f"{outcome.agent_id}: {'copied' if outcome.changed else 'has it'}")
            self._draw()

    def _draw(self) -> None:
        self._clear()
        if self._shown:
            click.echo(", ".join(f"{name} {percent} %" for name, percent in self._percent.items()), err=True, nl=False)

    def _clear(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)

"""`agents`, `images`."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from muster.cli.context import json_option, sessions
from muster.cli.output import age, print_json, print_table
from muster.core.agent import Agent
from muster.core.slots import Slots, format_slot
from muster.service.catalog import load_catalog, tags_on
from muster.service.views import agent_json


@click.command()
@json_option
def agents(as_json: bool) -> None:
    """List agents: what they have, and what is free."""
    with sessions() as service:
        snapshot = service.snapshot()
    kernels = {agent.id: 0 for agent in snapshot.agents}
    for session in snapshot.placed:
        for kernel in session.kernels:
            if kernel.allocation and kernel.allocation.agent_id in kernels:
                kernels[kernel.allocation.agent_id] += 1
    if as_json:
        print_json([agent_json(room.agent, asdict(room.free), kernels[room.agent.id]) for room in snapshot.rooms])
        return
    print_table(
        ("AGENT", "GROUP", "STATE", "CPU FREE", "MEM FREE", "GPU FREE", "FGPU FREE", "KERNELS", "SEEN", "PROBLEM"),
        [
            (
                room.agent.id,
                room.agent.resource_group,
                room.agent.state,
                *(_of(room.free, room.agent, name) for name in ("cpu", "mem", "gpu", "fgpu")),
                kernels[room.agent.id],
                f"{age(room.agent.observed_at)} ago",
                room.agent.problem or "-",
            )
            for room in snapshot.rooms
        ],
    )
    if not snapshot.agents:
        click.echo("no agent has been observed yet; `muster pass` observes those of the inventory", err=True)


def _of(free: Slots, agent: Agent, name: str) -> str:
    capacity = getattr(agent.capacity, name)
    return f"{format_slot(name, getattr(free, name))}/{format_slot(name, capacity)}" if capacity else "-"


@click.command()
@json_option
def images(as_json: bool) -> None:
    """List the image catalog, and which agents hold each image."""
    with sessions() as service:
        known = service.snapshot().agents
        catalog = load_catalog(service.settings.catalog)
        default = service.settings.default_image
    entries = [
        {
            "name": image.name,
            "reference": image.reference,
            "aliases": list(image.aliases),
            "description": image.description,
            "default": image.reference == default,
            "agents": _holders(known, image.reference),
        }
        for image in catalog.images
    ]
    if as_json:
        print_json(entries)
        return
    print_table(
        ("NAME", "REFERENCE", "AGENTS", "DESCRIPTION"),
        [
            (
                f"{entry['name']}{' (default)' if entry['default'] else ''}",
                entry["reference"],
                f"{len(_holders(known, str(entry['reference'])))}/{len(known)}",
                entry["description"],
            )
            for entry in entries
        ],
    )


def _holders(known: Sequence[Agent], reference: str) -> list[str]:
    return [agent.id for agent in known if reference in tags_on(agent.report.get("images", ()))]

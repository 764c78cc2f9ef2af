"""`agents`."""

from collections.abc import Sequence

import click

from muster.cli.agents.gpu_map import print_gpu_map
from muster.cli.context import json_option, opened_backend
from muster.cli.output import age, print_json, print_table
from muster.core.values.errors import BadInputError
from muster.core.values.slots import format_slot
from muster.service.agents.agents import AgentOccupancy
from muster.service.agents.views import AgentView

SUSPECT = "SUSPECT"


@click.command()
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only agents with this label; all of those given."
)
@click.option("--gpus", "shows_gpus", is_flag=True, help="Their GPUs instead: who has which share, and what is free.")
@json_option
def agents(labels: tuple[str, ...], shows_gpus: bool, as_json: bool) -> None:
    """List agents: what they have, and what is free."""
    required = dict(_label(text) for text in labels)
    with opened_backend() as backend:
        gpus = backend.gpus(required).items if shows_gpus else []
        known = backend.agents(required).items if not shows_gpus or not gpus else []
        any_known = bool(known or gpus or (required and backend.agents({}).items))
    if as_json:
        print_json(gpus if shows_gpus else known)
        return
    if shows_gpus:
        print_gpu_map(gpus)
    else:
        _print_agents(known)
    if not any_known:
        click.echo("no agent has been observed yet; `muster pass` observes those of the inventory", err=True)
    elif not (known or gpus):
        click.echo(f"no agent has {' and '.join(labels)}; `muster agent show AGENT` tells an agent's labels", err=True)


def _print_agents(known: Sequence[AgentView]) -> None:
    print_table(
        ("AGENT", "GROUP", "STATE", "CPU FREE", "MEM FREE", "GPU FREE", "FGPU FREE", "KERNELS", "SEEN", "PROBLEM"),
        [
            (
                agent.id,
                agent.resource_group,
                ",".join(filter(None, (agent.state, agent.drain, agent.suspect and SUSPECT))),
                *(_free(agent, name) for name in ("cpu", "mem", "gpu", "fgpu")),
                agent.kernels,
                f"{age(agent.observed_at)} ago",
                "; ".join(filter(None, (agent.problem, agent.suspect, _fgpu_problem(agent), _leftovers(agent)))) or "-",
            )
            for agent in known
        ],
    )


def _fgpu_problem(agent: AgentView) -> str:
    """Return why its GPUs are not cut as the site wants it; empty if they are."""
    return f"fgpu: {agent.fgpu_problem}" if agent.fgpu_problem else ""


def _leftovers(agent: AgentView) -> str:
    """Return how much it cannot remove; empty if there is nothing."""
    return f"{agent.leftovers} left of ended sessions: see `muster agent show {agent.id}`" if agent.leftovers else ""


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadInputError(f"--label: {text!r} has no =; write NAME=VALUE")
    return name, value


def agent_state(use: AgentOccupancy) -> str:
    """Return the state in one word for awk, flags behind a comma as in Kubernetes' `Ready,SchedulingDisabled`."""
    suspect = SUSPECT if use.agent.is_suspect else ""
    return ",".join(part for part in (use.agent.state.value, use.drain, suspect) if part)


def _free(agent: AgentView, name: str) -> str:
    capacity, free = getattr(agent.capacity, name), getattr(agent.free, name)
    return f"{format_slot(name, free)}/{format_slot(name, capacity)}" if capacity else "-"

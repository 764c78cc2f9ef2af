"""`agents`."""

from collections.abc import Sequence

import click

from muster.cli.context import json_option, sessions
from muster.cli.gpu_map import print_gpu_map
from muster.cli.output import age, print_json, print_table
from muster.core.agent import Agent
from muster.core.errors import BadInputError
from muster.core.slots import format_slot
from muster.service.agents import AgentUse, agent_use_json, agents_in_use
from muster.service.gpu_map import gpu_use_json, gpu_uses


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
    uses = [use for use in known if wanted.items() <= use.agent.choosable_labels.items()]
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

"""What `agent drain --plan` prints."""

import time
from typing import TYPE_CHECKING, Any

import click

from muster.cli.output import print_json, print_table
from muster.core.values.units import format_duration, timestamp

if TYPE_CHECKING:
    from muster.core.whatif.drain_plan import DrainPlan, Hit


def print_drain_plan(plan: "DrainPlan", *, as_json: bool) -> None:
    if as_json:
        print_json(_as_data(plan))
        return
    print_table(
        ("SESSION", "OWNER", "STATE", "AGENTS", "ENDS", "IF REQUEUED NOW"),
        [
            (
                hit.session.name,
                hit.session.owner,
                hit.session.state,
                ",".join(hit.session.agents),
                _when(hit.ends_at),
                _if_requeued(hit),
            )
            for hit in plan.hits
        ],
    )
    click.echo()
    print_table(("AGENT", "EMPTY"), [(agent_id, _when(at)) for agent_id, at in plan.empty_at.items()])
    if plan.delayed:
        click.echo(f"\ndelayed: {', '.join(session.name for session in plan.delayed)}")


def _if_requeued(hit: "Hit") -> str:
    if hit.session.ends_for_good:
        return "-"
    return "starts elsewhere" if hit.fits_elsewhere else "waits"


def _when(moment: float | None) -> str:
    if moment is None:
        return "nobody knows"
    left = moment - time.time()
    return f"in {format_duration(left)} ({timestamp(moment)})" if left > 0 else "now"


def _as_data(plan: "DrainPlan") -> dict[str, Any]:
    return {
        "sessions": [
            {
                "id": hit.session.id,
                "name": hit.session.name,
                "owner": hit.session.owner,
                "state": hit.session.state,
                "agents": list(hit.session.agents),
                "ends_at": timestamp(hit.ends_at),
                "fits_elsewhere": hit.fits_elsewhere,
            }
            for hit in plan.hits
        ],
        "agents": [{"id": agent_id, "empty_at": timestamp(at)} for agent_id, at in plan.empty_at.items()],
        "delayed": [{"id": session.id, "name": session.name} for session in plan.delayed],
    }

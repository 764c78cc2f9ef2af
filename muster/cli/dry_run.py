"""`submit --dry-run`: what would become of sessions, without queueing them."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from muster.cli.output import print_json
from muster.cli.why import print_suggestions, suggestion_json, surroundings
from muster.core.counterfactual import Answer
from muster.core.explain import explain, placed_where
from muster.core.session import Session
from muster.service.what_if import WhatIf

STARTS, WAITS, NEVER = 0, 1, 2
_MOST_SHOWN = 10


def dry_run(what_if: WhatIf, new: Sequence[Session], *, as_json: bool) -> int:
    """Prints where the sessions would start now, or why not and what would let them. The exit code says which."""
    snapshot = what_if.snapshot()
    answers = what_if.would_start(new)
    if as_json:
        print_json([_answer_json(answer) for answer in answers])
    else:
        gpu_indexes = {gpu.uuid: gpu.index for agent in snapshot.agents for gpu in agent.gpus}
        names = {session.id: session.name for session in (*snapshot.sessions, *new)}
        for answer in answers[:_MOST_SHOWN]:
            _print_answer(answer, gpu_indexes, names)
        _print_rest(answers)
    if any(answer.hopeless for answer in answers):
        return NEVER
    return WAITS if any(answer.wait for answer in answers) else STARTS


def _print_answer(answer: Answer, gpu_indexes: dict[str, int], names: dict[str, str]) -> None:
    session = answer.session
    if answer.placement is not None:
        click.echo(f"{session.name} would start now, {answer.placement.mode}:")
        for line in placed_where(session, answer.placement.allocations, gpu_indexes):
            click.echo(f"  {line}")
        return
    if answer.wait is None:
        return
    around = surroundings(names)
    verb = "would never start" if answer.hopeless else "would wait"
    click.echo(f"{session.name} {verb}: {answer.wait.message}")
    for line in explain(session, answer.wait, answer.wait.position, around, advice=False):
        click.echo(f"  {line}")
    print_suggestions(answer.suggestions, around)


def _print_rest(answers: Sequence[Answer]) -> None:
    if len(answers) > 1:
        starting = sum(answer.placement is not None for answer in answers)
        click.echo(f"{starting} of {len(answers)} sessions would start now")


def _answer_json(answer: Answer) -> dict[str, object]:
    placement = answer.placement
    return {
        "name": answer.session.name,
        "starts_now": placement is not None,
        "mode": placement.mode if placement else None,
        "kernels": [
            {
                "name": kernel.name,
                "agent": placement.allocations[kernel.id].agent_id,
                "gpus": [asdict(share) for share in placement.allocations[kernel.id].gpus],
            }
            for kernel in answer.session.kernels
        ]
        if placement
        else [],
        "wait": answer.wait.as_dict() if answer.wait else None,
        "suggestions": [suggestion_json(suggestion) for suggestion in answer.suggestions],
    }

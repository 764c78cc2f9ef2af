"""`submit --dry-run`: what would become of sessions, without queueing them."""

from collections.abc import Mapping, Sequence

import click

from muster.cli.output import print_json
from muster.cli.sessions.why import print_suggestions, surroundings
from muster.core.whatif.counterfactual import Answer
from muster.core.whatif.explain import explain, placed_where
from muster.service.questions.dry_run import DryRun
from muster.service.questions.views import DryRunItemView

STARTS, WAITS, NEVER = 0, 1, 2
_MOST_SHOWN = 10


def dry_run(told: DryRun, *, as_json: bool) -> int:
    """Prints where the sessions would start now, or why not and what would let them. The exit code says which."""
    answers = told.answers
    if as_json:
        print_json([DryRunItemView.of(answer) for answer in answers])
    else:
        for answer in answers[:_MOST_SHOWN]:
            _print_answer(answer, told.gpu_indexes, told.names)
        _print_rest(answers)
    if any(answer.hopeless for answer in answers):
        return NEVER
    return WAITS if any(answer.wait for answer in answers) else STARTS


def _print_answer(answer: Answer, gpu_indexes: Mapping[str, int], names: Mapping[str, str]) -> None:
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

"""`submit --dry-run`: what would become of sessions, without queueing them."""

from collections.abc import Sequence

import click

from muster.cli.output import print_json
from muster.cli.sessions.why import print_suggestions, surroundings
from muster.core.whatif.counterfactual import Answer
from muster.core.whatif.explain import explain, placed_where
from muster.service.questions.dry_run import DryRun
from muster.service.questions.views import DryRunView

STARTS, WAITS, NEVER = 0, 1, 2
_MOST_SHOWN = 10


def dry_run(told: DryRun, *, as_json: bool) -> int:
    """Prints where the sessions would start now, or why not and what would let them. The exit code says which."""
    answers = told.answers
    if as_json:
        print_json(DryRunView.of(told).items)
    else:
        for answer in answers[:_MOST_SHOWN]:
            _print_answer(answer, told)
        _print_rest(answers, told)
    if told.unworked is not None:
        click.echo(f"muster: warning: {told.unworked.text}", err=True)
    if any(answer.hopeless for answer in answers):
        return NEVER
    return WAITS if told.unworked or any(answer.wait for answer in answers) else STARTS


def _print_answer(answer: Answer, told: DryRun) -> None:
    session = answer.session
    if answer.placement is not None:
        when = "now" if told.unworked is None else "once somebody works the queue"
        click.echo(f"{session.name} would start {when}, {answer.placement.mode}:")
        for line in placed_where(session, answer.placement.allocations, told.gpu_indexes):
            click.echo(f"  {line}")
        return
    if answer.wait is None:
        return
    around = surroundings(told.names, told.unworked)
    verb = "would never start" if answer.hopeless else "would wait"
    click.echo(f"{session.name} {verb}: {answer.wait.message}")
    for line in explain(session, answer.wait, answer.wait.position, around, advice=False):
        click.echo(f"  {line}")
    print_suggestions(answer.suggestions, around)


def _print_rest(answers: Sequence[Answer], told: DryRun) -> None:
    if len(answers) > 1 and told.unworked is None:
        starting = sum(answer.placement is not None for answer in answers)
        click.echo(f"{starting} of {len(answers)} sessions would start now")

"""`limit` and `share-weight`: what administrators set over the settings while everything runs."""

import math

import click

from muster.cli.context import current_user, json_option, opened_service
from muster.cli.output import print_json, print_table
from muster.core.model.overrides import Limited
from muster.core.model.policy import Limit
from muster.core.values.errors import BadInputError
from muster.service.scheduler.overrides import limit_as_written
from muster.service.scheduler.views import ChangedLimitView, ChangedWeightView, SiteLimitView, Source

_kind = click.argument("kind", type=click.Choice([limited.value for limited in Limited]))
_SOURCES = {Source.DEFAULT: "default", Source.SETTINGS: "settings file"}


@click.group("limit")
def limit_group() -> None:
    """What users, projects and resource groups may have running and waiting."""


@limit_group.command("ls")
@json_option
def limits(as_json: bool) -> None:
    """List the limits in force, and where each comes from."""
    with opened_service() as service:
        found = service.limits.all().items
    if as_json:
        print_json(found)
        return
    print_table(
        ("FOR", "NAME", "RUNNING", "WAITING", "FROM"),
        [
            (_for(one), one.name, one.running.spelled, one.pending.spelled, _from(one.source, one.changed_by))
            for one in found
        ],
    )


@limit_group.command("set")
@_kind
@click.argument("name")
@click.argument("amounts", nargs=-1, metavar="AMOUNT...")
@click.option("--none", "nothing", is_flag=True, help="Instead of amounts: no limit at all.")
@json_option
def set_limit(kind: str, name: str, amounts: tuple[str, ...], nothing: bool, as_json: bool) -> None:
    r"""Set a limit over the settings file's. It replaces that of the same name as a whole, from the next decision on.

    \b
      muster limit set user ada running.gpu=16 running.mem=512G
      muster limit set user '*' running.gpu=8 pending.sessions=100
      muster limit set project vision --none

    An AMOUNT is running or pending, a dot, one of sessions, kernels, cpu, mem, fgpu and gpu, and how much. The name *
    stands for each that is not named.
    """
    if bool(amounts) == nothing:
        raise BadInputError("AMOUNT: say what is limited; write running.gpu=8, for example, or --none for no limit")
    limit = _limit(amounts)
    with opened_service() as service:
        made = service.limits.set(Limited(kind), name, limit, current_user())
    if as_json:
        print_json(made)
    else:
        click.echo(f"{_for(made)} {name}: {made.sentence}")


@limit_group.command("unset")
@_kind
@click.argument("name")
@json_option
def unset_limit(kind: str, name: str, as_json: bool) -> None:
    """Let the settings file's limit apply again; where it has none, that of *."""
    with opened_service() as service:
        now = service.limits.unset(Limited(kind), name)
    if as_json:
        print_json(ChangedLimitView(limit=now))
    else:
        click.echo(f"{Limited(kind).spelled} {name}: {now.sentence if now else 'no limit of its own'}")


@click.group("share-weight")
def share_weight_group() -> None:
    """How much each user is entitled to in the orders drf and fair_share."""


@share_weight_group.command("ls")
@json_option
def weights(as_json: bool) -> None:
    """List the share weights in force, and where each comes from. Users who are not named have 1."""
    with opened_service() as service:
        found = service.weights.all().items
    if as_json:
        print_json(found)
        return
    rows = [(one.owner, f"{one.weight:g}", _from(one.source, one.changed_by)) for one in found]
    print_table(("USER", "WEIGHT", "FROM"), rows)


@share_weight_group.command("set")
@click.argument("user")
@click.argument("weight")
@json_option
def set_weight(user: str, weight: str, as_json: bool) -> None:
    """Set a user's share weight over the settings file's: with 2, they are entitled to twice as much."""
    with opened_service() as service:
        made = service.weights.set(user, _weight(weight), current_user())
    if as_json:
        print_json(made)
    else:
        click.echo(f"user {user}: share weight {made.weight:g}")


@share_weight_group.command("unset")
@click.argument("user")
@json_option
def unset_weight(user: str, as_json: bool) -> None:
    """Let the settings file's share weight apply again; where it has none, 1."""
    with opened_service() as service:
        now = service.weights.unset(user)
    if as_json:
        print_json(ChangedWeightView(share_weight=now))
    else:
        click.echo(f"user {user}: share weight {1 if now is None else now.weight:g}")


def _limit(amounts: tuple[str, ...]) -> Limit:
    written: dict[str, dict[str, object]] = {"running": {}, "pending": {}}
    for text in amounts:
        name, equals, amount = text.partition("=")
        when, dot, counted = name.partition(".")
        if not (equals and dot) or when not in written:
            raise BadInputError(f"AMOUNT: {text!r} is no amount; write running.gpu=8 or pending.sessions=100")
        if counted in written[when]:
            raise BadInputError(f"AMOUNT: {name} is given twice; give it once")
        written[when][counted] = amount
    return limit_as_written(written["running"], written["pending"])


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _for(limit: SiteLimitView) -> str:
    return limit.kind.spelled


def _from(source: Source, changed_by: str | None) -> str:
    return _SOURCES.get(source, f"set by {changed_by}")

"""`images`: the catalog, which agents hold what, copying to agents, and removing what was made of sessions."""

import sys

import click

from muster.cli.context import json_option, opened_backend, opened_service
from muster.cli.output import print_json, print_table
from muster.cli.sync_progress import SyncProgress, outcome_json
from muster.core.values.errors import BadInputError
from muster.core.values.slots import format_slots
from muster.core.values.units import format_bytes, timestamp
from muster.service.images.views import ImageView


@click.group(invoke_without_command=True)
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only images with this label; all of those given."
)
@json_option
@click.pass_context
def images(ctx: click.Context, labels: tuple[str, ...], as_json: bool) -> None:
    """List the image catalog, and how many agents hold each image.

    An image is chosen by NAME:VERSION, by an alias, or by NAME for its default version, which bears a *. Images made by
    `muster commit` stand among them for those who may use them.
    """
    if ctx.invoked_subcommand is not None:
        return
    required = dict(_label(text) for text in labels)
    with opened_backend() as backend:
        known = backend.images.all()
    shown = [image for image in known.items if required.items() <= image.labels.items()]
    if as_json:
        print_json(shown)
        return
    print_table(
        ("NAME", "VERSION", "ALIASES", "ARCH", "MIN", "AGENTS", "DESCRIPTION"),
        [
            (
                f"{image.name}{' (default)' if image.default else ''}",
                f"{image.version}{'*' if image.is_default_version else ''}",
                ",".join(image.aliases) or "-",
                image.architecture or "any",
                _least(image),
                _held_by(image, known.agent_count),
                image.description or "-",
            )
            for image in shown
        ],
    )
    if known.removed:
        click.echo("\nRemoved from agents whose disks were short, since nobody needed them:")
        print_table(
            ("IMAGE", "AGENT", "REMOVED"),
            [(image.reference, image.agent, timestamp(image.removed_at)) for image in known.removed],
        )
    if known.items and not shown:
        click.echo(f"no image has {' and '.join(labels)}; `muster images show NAME` tells an image's labels", err=True)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadInputError(f"--label: {text!r} has no =; write NAME=VALUE")
    return name, value


def _least(image: ImageView) -> str:
    text = format_slots(image.minimum.slots)
    return "-" if text == "nothing" else text


def _held_by(image: ImageView, agent_count: int) -> str:
    """Return how many agents hold the image, and how many versions of it they hold if these differ."""
    versions = len(image.image_ids)
    return f"{len(image.agents)}/{agent_count}" + (f",{versions}-VERSIONS" if versions > 1 else "")


@images.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Print all that is known of an image: NAME for all its versions, or NAME:VERSION, or an alias."""
    with opened_backend() as backend:
        found = backend.images.named(name).items
    if as_json:
        print_json(found)
        return
    for number, image in enumerate(found):
        if number:
            click.echo()
        for label, value in _facts(image):
            click.echo(f"{label + ':':<14}{value}")


def _facts(image: ImageView) -> list[tuple[str, str]]:
    made = image.committed
    labels = ", ".join(f"{name}={value}" for name, value in sorted(image.labels.items()))
    agents = ", ".join(f"{agent} ({identity[7:19]})" for agent, identity in image.image_id_by_agent.items())
    facts = [
        ("image", f"{image.name}:{image.version}{' (the default version)' if image.is_default_version else ''}"),
        ("reference", image.reference),
        ("aliases", ", ".join(image.aliases)),
        ("description", image.description),
        ("labels", labels),
        ("architecture", image.architecture or "any"),
        ("minimum", _least(image)),
        ("users", ", ".join(image.users)),
        ("projects", ", ".join(image.projects)),
        ("agents", agents or "none"),
        ("size", format_bytes(image.size_bytes) if image.size_bytes is not None else ""),
    ]
    if made:
        facts += [
            ("author", made.author),
            ("parent", f"{made.parent} ({made.parent_id[7:19]})"),
            ("session", f"{made.session.name}:{made.session.kernel} ({made.session.id})"),
            ("made", f"{timestamp(made.created_at)} on {made.agent}"),
        ]
    return [(label, value) for label, value in facts if value]


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
    from muster.service.images.distribution import image_sync  # noqa: PLC0415 - the Docker SDK loads slowly

    names = [name.strip() for value in targets for name in value.split(",") if name.strip()]
    if names and group is not None:
        raise BadInputError("--group: it was given together with --to; use one of them")
    with opened_service() as service:
        reference = service.image_reference(reference)
        agents = service.agents.all()
        plan = image_sync(agents, reference, service.image_ids(), source_id=source, target_ids=names, group=group)
        progress = SyncProgress(shown=sys.stderr.isatty() and not as_json)
        outcomes = service.copy_image(plan, progress.note, progress.finished if not as_json else lambda _outcome: None)
    changed = any(outcome.changed for outcome in outcomes)
    if as_json:
        print_json(
            {
                "reference": plan.reference,
                "image_id": plan.image_id,
                "from": plan.source.id,
                "changed": changed,
                "targets": [outcome_json(outcome) for outcome in outcomes],
            }
        )
    elif not changed and not any(outcome.error for outcome in outcomes):
        others = f" and {len(outcomes)} other{'s' * (len(outcomes) > 1)}" if outcomes else ""
        click.echo(f"nothing to do: {plan.reference} is on {plan.source.id}{others} already")
    if any(outcome.error for outcome in outcomes):
        raise click.exceptions.Exit(1)


@images.command()
@click.argument("reference", metavar="NAME:TAG")
@json_option
def rm(reference: str, as_json: bool) -> None:
    """Remove an image that `muster commit` made: from the catalog, and from all agents.

    Its author may, and administrators. Exit code 1 when an agent could not be reached: the image stays
    in the catalog then, and the same command tries the others again.
    """
    with opened_backend() as backend:
        removed = backend.images.remove(reference)
    if as_json:
        print_json(removed)
    else:
        for agent_id, problem in removed.failed.items():
            click.echo(f"muster: {agent_id}: {problem}", err=True)
        if not removed.failed:
            click.echo(f"{reference} is removed, from {len(removed.removed_from)} agents")
    if removed.failed:
        raise click.exceptions.Exit(1)

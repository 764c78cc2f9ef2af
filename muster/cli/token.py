"""`token create`, `token ls`, `token revoke`."""

import time

import click

from muster.cli.context import json_option, opened_backend
from muster.cli.output import age, print_json, print_table
from muster.core.model.token import Scope
from muster.core.values.units import timestamp
from muster.service.identity.views import TokenView


@click.group("token")
def token_group() -> None:
    """Tokens with which programs and other machines use the API of `muster web`."""


@token_group.command()
@click.argument("name")
@click.option(
    "--user", "-u", metavar="USER", help="Whose sessions it sees, and who owns what it submits; me by default."
)
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in Scope]),
    default=Scope.USER.value,
    show_default=True,
    help="admin: everybody's sessions, and agents; user: the user's own; read: the same, changing nothing.",
)
@click.option(
    "--project", "-P", "projects", metavar="PROJECT", multiple=True, help="Only for this project; may be repeated."
)
@click.option("--expires", metavar="TIME", help="Not valid any more after this time: 30d, 12h; never by default.")
@click.option("--quiet", "-q", is_flag=True, help="Print the token only.")
@json_option
def create(
    name: str, user: str | None, scope: str, projects: tuple[str, ...], expires: str | None, quiet: bool, as_json: bool
) -> None:
    """Make a token and print it: this once, since only a hash of it is kept."""
    with opened_backend() as backend:
        token = backend.tokens.create(name, user, Scope(scope), expires, projects)
    if as_json:
        print_json(token)
        return
    click.echo(token.token)
    if not quiet:
        until = f", until {timestamp(token.expires_at)}" if token.expires_at is not None else ""
        only = f" for {', '.join(token.projects)}" if token.projects else ""
        click.echo(
            f"{name} is {token.user}'s, with scope {scope}{only}{until};"
            " keep it in a file of mode 0600 for --token-file",
            err=True,
        )


@token_group.command("ls")
@json_option
def ls_(as_json: bool) -> None:
    """List my tokens, those that have expired too; for administrators everybody's."""
    now = time.time()
    with opened_backend() as backend:
        found = backend.tokens.all().items
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "USER", "SCOPE", "STATE", "CREATED", "EXPIRES", "LAST USED"),
        [(token.name, token.user, token.scope, _state(token, now), *_times(token)) for token in found],
    )


@token_group.command()
@click.argument("name")
@json_option
def revoke(name: str, as_json: bool) -> None:
    """Make a token worthless at once."""
    with opened_backend() as backend:
        removed = backend.tokens.revoke(name)
    if as_json:
        print_json(removed)
    else:
        click.echo(f"{name} is revoked")


def _state(token: TokenView, now: float) -> str:
    return "expired" if token.expires_at is not None and token.expires_at <= now else "valid"


def _times(token: TokenView) -> tuple[str, str, str]:
    used = f"{age(token.last_used_at)} ago" if token.last_used_at is not None else "never"
    return timestamp(token.created_at) or "-", timestamp(token.expires_at) or "never", used

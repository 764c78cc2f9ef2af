"""`muster secret`: set, list and remove what only sessions may read."""

import sys
from pathlib import Path

import click

from muster.cli.context import json_option, opened_backend
from muster.cli.output import print_json, print_table
from muster.core.values.errors import BadInputError
from muster.core.values.units import timestamp
from muster.service.secrets.secrets import MAX_SECRET_BYTES


@click.group("secret")
def secret_group() -> None:
    """Passwords, tokens and keys for my sessions: `muster submit --secret NAME`.

    They are sealed on the control node, and never shown again.
    """


@secret_group.command("set")
@click.argument("name")
@click.option("--from-file", type=click.Path(path_type=Path), help="Take it from this file, as it is.")
def set_(name: str, from_file: Path | None) -> None:
    r"""Set a secret, or change it; sessions get what it is when they are launched.

    It is read from standard input, without its last line break; at a terminal there is a prompt.

    \b
      muster secret set api-token < token.txt
      muster secret set deploy-key --from-file ~/.ssh/deploy
    """
    value = _from_file(from_file) if from_file else _from_input()
    with opened_backend() as backend:
        backend.secrets.set(name, value)
    click.echo(f"{name} is set")


@secret_group.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """List the names of my secrets, and when each was set."""
    with opened_backend() as backend:
        found = backend.secrets.names().items
    if as_json:
        print_json(found)
    else:
        print_table(("NAME", "SET"), [(secret.name, timestamp(secret.changed_at)) for secret in found])


@secret_group.command("rm")
@click.argument("name")
def rm(name: str) -> None:
    """Remove a secret. Sessions that run keep their copy until they end."""
    with opened_backend() as backend:
        backend.secrets.remove(name)
    click.echo(f"{name} is removed")


def _from_input() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True))
    return _text("standard input", sys.stdin.buffer.read(MAX_SECRET_BYTES + 2)).removesuffix("\n").removesuffix("\r")


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _text(str(path), file.read(MAX_SECRET_BYTES + 1))
    except OSError as error:
        raise BadInputError(f"--from-file: {path} cannot be read: {error.strerror or error}") from None


def _text(where: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        if len(content) > MAX_SECRET_BYTES:
            raise BadInputError("the secret is larger than 64 KiB; put large things into a data folder") from None
        raise BadInputError(f"{where} is not UTF-8 text; encode it, as with base64") from None

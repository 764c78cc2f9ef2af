"""`playbook`: the playbooks that come with Muster, wherever it is installed."""

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from muster.core.values.errors import BadInputError, MusterError
from muster.shipped_files import ansible_root


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", required=False, metavar="[PLAYBOOK]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ANSIBLE-PLAYBOOK'S ARGUMENTS]…")
def playbook(name: str | None, arguments: tuple[str, ...]) -> None:
    r"""Run a playbook of Muster's by ansible-playbook; without PLAYBOOK, list them.

    \b
      muster playbook site.yml -i inventory.yml
      muster playbook drain.yml -i inventory.yml -e drain_agents=gpu-01 -e drain_wait=true
      muster playbook ./own.yml -i inventory.yml      (a path: your own, with Muster's modules and roles)
    """
    directory = ansible_root() / "playbooks"
    if name is None:
        for path in sorted(directory.glob("*.yml")):
            click.echo(f"{path.name:<20} {_summary(path)}")
        return
    _run(_found(directory, name), arguments)


def _summary(path: Path) -> str:
    """Return the playbook's first comment, or its first play's name where that is a command."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = next((line.removeprefix("# ") for line in lines if line.startswith("# ")), "")
    name = next((line.removeprefix("- name: ") for line in lines if line.startswith("- name: ")), "")
    return name if comment.startswith("ansible-playbook") else comment.partition(". ")[0].rstrip(".")


def _found(directory: Path, name: str) -> Path:
    """Raises BadInputError."""
    if "/" in name:
        path = Path(name)
        if not path.is_file():
            raise BadInputError(f"PLAYBOOK: {name} is no file; name one of yours, or one that `muster playbook` lists")
        return path
    path = directory / (name if name.endswith((".yml", ".yaml")) else f"{name}.yml")
    if not path.is_file():
        known = ", ".join(sorted(one.name for one in directory.glob("*.yml")))
        raise BadInputError(f"PLAYBOOK: there is no {name!r}; name one of {known}, or a path such as ./{path.name}")
    return path


def _run(path: Path, arguments: tuple[str, ...]) -> NoReturn:
    """Become ansible-playbook, the one that is installed with Muster. Raises MusterError."""
    program = Path(sys.executable).with_name("ansible-playbook")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ansible_root() / "ansible.cfg")}
    try:
        os.execve(program, [str(program), str(path), *arguments], environment)  # noqa: S606 - no shell is needed
    except OSError as error:
        raise MusterError(f"{program} cannot be run: {error.strerror}; install Muster with its dependencies") from None

"""Job scripts for Slurm: what `muster submit` takes from their #SBATCH lines, and what it warns of."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from muster.core.spec.sbatch import logs_outside_folders, translation
from muster.core.spec.sbatch_options import has_sbatch_lines
from muster.core.values.errors import SpecError


def from_sbatch_lines(path: Path, text: str) -> dict[str, Any]:
    """Return the fields that a script's #SBATCH lines mean, none without any; warn of options without effect.

    Raises SpecError with the lines of all errors.
    """
    if not has_sbatch_lines(text):
        return {}
    try:
        found = translation(text, os.environ)
    except SpecError as error:
        raise SpecError([replace(item, field=f"{path}: {item.field}") for item in error.errors]) from None
    if found.without_effect:
        ignored = ", ".join(found.without_effect)
        click.echo(f"muster: {path}: without their effect in Slurm (docs/slurm.md): {ignored}", err=True)
    return dict(found.fields)


def drop_lost_logs(spec: dict[str, Any], sbatch: Mapping[str, Any]) -> None:
    """Leave out log files of #SBATCH lines that no data folder holds: `muster logs` has what they would hold."""
    lost = {name: file for name, file in logs_outside_folders(spec).items() if sbatch.get(name) == file}
    for name in lost:
        del spec[name]
    if lost:
        click.echo(
            f"muster: {', '.join(lost.values())}: in no data folder, so the output is in `muster logs` alone;"
            " mount one for it: --mount FOLDER",
            err=True,
        )

"""Job scripts for Slurm: what `muster submit` takes from their #SBATCH lines, and what it warns of."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from muster.core.spec.errors import root_field
from muster.core.spec.sbatch import Translation, logs_outside_folders, translation
from muster.core.spec.sbatch_options import has_sbatch_lines
from muster.core.values.errors import FieldError, SpecError
from muster.service.backend import Backend


def from_sbatch_lines(path: Path, text: str) -> Translation | None:
    """Return what a script's #SBATCH lines mean, None without any; warn of options without effect."""
    if not has_sbatch_lines(text):
        return None
    found = translation(text, os.environ)
    if found.errors:
        return replace(found, errors=tuple(replace(item, field=f"{path}: {item.field}") for item in found.errors))
    if found.without_effect:
        ignored = ", ".join(found.without_effect)
        click.echo(f"muster: {path}: without their effect in Slurm (docs/slurm.md): {ignored}", err=True)
    return found


def refuse_wrong_lines(lines: Translation, spec: Mapping[str, Any], owner: str | None, backend: Backend) -> None:
    """Raise SpecError if #SBATCH lines have errors: with these, and with those of the rest of the spec."""
    if not lines.errors:
        return
    others: Sequence[FieldError] = ()
    try:
        backend.dry_run(spec, owner, 1)
    except SpecError as error:
        others = [item for item in error.errors if root_field(item.field) not in lines.in_doubt]
    raise SpecError([*lines.errors, *others])


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

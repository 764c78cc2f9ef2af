"""The part of the session spec about files that get the command's output, with patterns as Slurm's."""

import posixpath
import re
from collections.abc import Iterator, Mapping

from pydantic import Field, field_validator

from muster.core.spec.base import SpecModel, flag
from muster.core.spec.values import invalid
from muster.core.values.errors import FieldError

LETTERS = "AaJjNnstux"
_PATTERN = re.compile(r"%(?P<width>\d{0,2})(?P<letter>[A-Za-z%])", re.ASCII)
_MOST_WIDTH = 10


class LogFields(SpecModel):
    output: str | None = Field(
        default=None,
        description="file in a data folder that gets the command's output as well; %j, %x, %a as in Slurm",
        json_schema_extra=flag("--output", "-o", metavar="FILE"),
    )
    error: str | None = Field(
        default=None,
        description="file in a data folder for standard error; where there is none, the file of the output gets it",
        json_schema_extra=flag("--error", metavar="FILE"),
    )

    @field_validator("output", "error")
    @classmethod
    def _usable_pattern(cls, value: str | None) -> str | None:
        if value is None:
            return None
        remedy = "write a file in a data folder, such as logs/%x-%j.log"
        if value.endswith("/") or ".." in value.split("/") or not value.strip() or not value.isprintable():
            raise invalid(f"{value!r} is no file", remedy)
        rest = _PATTERN.sub("", value)
        unknown = [m["letter"] for m in _PATTERN.finditer(value) if m["letter"] not in {*LETTERS, "%"}]
        if "%" in rest or unknown:
            raise invalid(f"{value!r} holds an unknown pattern", f"use %{', %'.join(LETTERS)}, and %% for a %")
        return value

    def lost_logs(self, home: str) -> dict[str, str]:
        """Return by field the files that would be lost with their containers: those in no mount.

        One in a folder that may be mounted because of its dot is none of them.
        """
        mounts = [mount for mount in getattr(self, "mounts", ()) if not mount.read_only]

        def is_kept(path: str) -> bool:
            by_its_dot = getattr(self, "dot_folders", False) and path.startswith(f"{home}/.")
            return by_its_dot or any(path.startswith(f"{mount.target}/") for mount in mounts)

        patterns = {"output": self.output, "error": self.error}
        directory = getattr(self, "workdir", None) or home
        return {name: text for name, text in patterns.items() if text and not is_kept(log_path(text, directory))}

    def _log_errors(self, home: str) -> Iterator[FieldError]:
        """Yield errors of fields that do not agree; what commands and mounts are is the whole spec's."""
        if not getattr(self, "is_batch", True):
            for name in ("output", "error"):
                if getattr(self, name) is not None:
                    yield FieldError(name, "an interactive session has no command", "give a command or a job script")
            return
        for name, pattern in self.lost_logs(home).items():
            yield FieldError(
                name,
                f"{pattern!r} is in no data folder that can be written to",
                "mount one, and begin with its name, such as logs/%x.log",
            )


def log_path(pattern: str, directory: str) -> str:
    """Return a pattern as an absolute path in the kernels."""
    return posixpath.normpath(posixpath.join(directory, pattern))


def expanded(pattern: str, values: Mapping[str, str]) -> str:
    """Return a pattern with the values of its letters. `%5a` pads a number with zeros; no value adds a directory."""

    def value(match: re.Match[str]) -> str:
        if match["letter"] == "%":
            return "%"
        text = values[match["letter"]].replace("/", "_")
        return text.zfill(min(int(match["width"] or 0), _MOST_WIDTH)) if text.isdecimal() else text

    return _PATTERN.sub(value, pattern)

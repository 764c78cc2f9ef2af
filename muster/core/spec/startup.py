"""The part of the session spec about how kernels start, which secrets they get, and where changes are sent."""

import posixpath
import re
from collections.abc import Iterator
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from muster.core.spec.base import Bounds, SpecModel, flag
from muster.core.spec.values import invalid
from muster.core.values.errors import FieldError

MAX_INPUT_BYTES = 1 << 20
MAX_BOOTSTRAP_BYTES = 256 << 10
MAX_URL = 2000
_RUN_FROM_A_FOLDER = "put what it needs into a data folder, and run that"
_READ_FROM_A_FOLDER = "put it into a data folder, and read it from there"
SECRET_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that Muster sets itself, and those that would stop the runtime's own programs.
_RESERVED_VARIABLES = re.compile(r"(BACKENDAI|MUSTER|LD)_.*|PATH|HOME|USER|LOGNAME|SHELL|HOSTNAME")


class SecretSpec(SpecModel):
    """A secret of the owner's in every kernel. Short form: `NAME`, `NAME=VARIABLE` or `NAME:/path`."""

    name: str = Field(description="name of the secret, and of its file in /run/muster/secrets of each kernel")
    env: str | None = Field(default=None, description="environment variable that holds it for the command as well")
    path: str | None = Field(default=None, description="path in the kernels at which a link to the file is made")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if "=" in value:
            name, _, variable = value.partition("=")
            return {"name": name, "env": variable}
        name, colon, path = value.partition(":")
        return {"name": name, "path": path} if colon else {"name": name}

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        return secret_name(value)

    @model_validator(mode="after")
    def _usable_places(self) -> Self:
        if self.env is not None and not _VARIABLE_PATTERN.fullmatch(self.env):
            raise invalid(
                f"{self.env!r} is not a variable name", "use letters, digits and underscores, as in token=API_TOKEN"
            )
        if self.env is not None and _RESERVED_VARIABLES.fullmatch(self.env):
            raise invalid(f"{self.env} is a variable that Muster sets", "choose another, as in token=API_TOKEN")
        if self.path is not None:
            _check_path(self.path, "write a path such as token:/data/.token")
        return self


class StartupFields(SpecModel):
    bootstrap: Annotated[str, Bounds(MAX_BOOTSTRAP_BYTES, remedy=_RUN_FROM_A_FOLDER)] | None = Field(
        default=None,
        description="script that every kernel runs before its command; one that fails ends the session",
        json_schema_extra=flag("--bootstrap", metavar="FILE", reads_file=True),
    )
    workdir: str | None = Field(
        default=None,
        description="directory in which commands begin; the home directory if not given",
        json_schema_extra=flag("--workdir", metavar="DIR"),
    )
    input: Annotated[str, Bounds(MAX_INPUT_BYTES, remedy=_READ_FROM_A_FOLDER)] | None = Field(
        default=None,
        description="what the command reads on standard input",
        json_schema_extra=flag("--input", metavar="FILE|-", reads_file=True),
    )
    secrets: tuple[SecretSpec, ...] = Field(
        default=(),
        max_length=100,
        description="secret in every kernel, such as hf, hf=HF_TOKEN (a variable) or hf:/path (a file)",
        json_schema_extra=flag("--secret", metavar="SECRET", multiple=True),
    )
    callback: Annotated[str, Bounds(MAX_URL)] | None = Field(
        default=None,
        max_length=MAX_URL,
        description="URL (http or https) that is sent each change of state as JSON",
        json_schema_extra=flag("--callback", metavar="URL"),
    )

    @field_validator("bootstrap")
    @classmethod
    def _script(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise invalid("it is empty", "write a script, or leave it out")
        return value

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return None if value is None else _check_path(value, "write an absolute path such as /data/project")

    @field_validator("secrets")
    @classmethod
    def _distinct_secrets(cls, value: tuple[SecretSpec, ...]) -> tuple[SecretSpec, ...]:
        for name, places in (("variable", [s.env for s in value]), ("path", [s.path for s in value])):
            taken = [place for place in places if place is not None]
            for place in sorted({place for place in taken if taken.count(place) > 1}):
                raise invalid(f"two secrets are given the {name} {place}", "give one of them another")
        return value

    @field_validator("callback")
    @classmethod
    def _web_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        remedy = "write a URL such as https://hooks.example.org/muster"
        try:
            parts = urlsplit(value)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or any(character.isspace() or not character.isprintable() for character in value):
            raise invalid(f"{value!r} is not an http or https URL", remedy)
        return value

    def _startup_errors(self) -> Iterator[FieldError]:
        """Yield errors of fields that do not agree; `env` and the rules of a batch session are the whole spec's."""
        env = getattr(self, "env", {})
        for secret in self.secrets:
            if secret.env in env:
                yield FieldError("secrets", f"{secret.env} is in env as well", "give the variable in one of the two")
        if self.input is not None and not getattr(self, "is_batch", True):
            yield FieldError("input", "an interactive session reads none", "give a command or a job script too")


def secret_name(value: str) -> str:
    if not SECRET_PATTERN.fullmatch(value):
        raise invalid(f"{value!r} is not a secret's name", "use letters, digits, dots, dashes and underscores")
    return value


def _check_path(value: str, remedy: str) -> str:
    if not value.startswith("/") or ".." in value.split("/") or not value.isprintable():
        raise invalid(f"{value!r} is not an absolute path", remedy)
    return "/" + posixpath.normpath(value).lstrip("/")

"""The part of the session spec that says which programs main1 serves to a browser."""

import re
from collections.abc import Iterator
from typing import Self

from pydantic import Field, field_validator, model_validator

from muster.core.spec.base import Argument, SpecModel, flag
from muster.core.spec.values import invalid
from muster.core.values.errors import FieldError

MAX_APPS = 20
APP_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


class AppSpec(SpecModel):
    """A program that starts with main1. Short form: `NAME[=PORT]`.

    What is left out is as the site's kind of app of that name has it; the spec of a session that was queued has all.
    """

    name: str = Field(description="such as jupyterlab, tensorboard, mlflow, ttyd, or one of the site's or your own")
    port: int | None = Field(default=None, ge=1, le=65535, description="port of main1 that it serves")
    command: Argument | None = Field(
        default=None,
        min_length=1,
        description="shell command that serves $MUSTER_APP_PORT and guards it with $MUSTER_APP_TOKEN",
    )
    args: Argument | None = Field(default=None, description="added to the end of the command")
    health: str | None = Field(default=None, description="path that answers a GET once it serves; empty: its port does")
    url: str | None = Field(
        default=None, min_length=1, description="path, or whole URL, to open; {port} and {token} are filled in"
    )
    token: bool | None = Field(default=None, description="whether it is given a token to guard itself with")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        name, equals, port = value.partition("=")
        return {"name": name, "port": port} if equals else {"name": name}

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        return checked_name(value)

    @field_validator("health")
    @classmethod
    def _path(cls, value: str | None) -> str | None:
        return checked_health(value)

    @field_validator("url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        return checked_url(value)


class PublishedPort(SpecModel):
    """A port that a program of the user's own serves in main1. Short form: `PORT` or `NAME=PORT`."""

    name: str = Field(default="", description="what it is called where it is opened; the port's number by default")
    port: int = Field(ge=1, le=65535, description="port of main1")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int):
            return value
        name, equals, port = str(value).partition("=")
        return {"name": name, "port": port} if equals else {"port": name}

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        return checked_name(value) if value else value

    @model_validator(mode="after")
    def _name_given(self) -> Self:
        object.__setattr__(self, "name", self.name or str(self.port))
        return self


class AppFields(SpecModel):
    apps: tuple[AppSpec, ...] = Field(
        default=(),
        max_length=MAX_APPS,
        description="program to start in main1 and open in a browser: jupyterlab, tensorboard, mlflow, ttyd, …",
        json_schema_extra=flag("--app", metavar="NAME[=PORT]", multiple=True),
    )
    publish: tuple[PublishedPort, ...] = Field(
        default=(),
        max_length=MAX_APPS,
        description="port of main1 that a program of your own serves, such as 8000 or web=8000",
        json_schema_extra=flag("--publish", metavar="PORT", multiple=True),
    )

    def _app_errors(self) -> Iterator[FieldError]:
        names: set[str] = set()
        ports: set[int] = set()
        for field, entry in served(self):
            if entry.name in names:
                yield FieldError(field, f"{entry.name} is given twice", "give each app a name of its own")
            elif entry.port is not None and entry.port in ports:
                yield FieldError(field, f"port {entry.port} is given twice", "give each app a port of its own")
            names.add(entry.name)
            ports |= {entry.port} if entry.port is not None else set()


def served(spec: AppFields) -> list[tuple[str, AppSpec | PublishedPort]]:
    """Return the apps and published ports, each with the name of its field."""
    return [
        *((f"apps[{index}]", app) for index, app in enumerate(spec.apps)),
        *((f"publish[{index}]", port) for index, port in enumerate(spec.publish)),
    ]


def checked_health(value: str | None) -> str | None:
    if value and (not value.startswith("/") or not value.isascii() or not value.isprintable() or " " in value):
        raise invalid(f"{value!r} is not a path", "write one such as /api, or nothing where it speaks no HTTP")
    return value


def checked_url(value: str | None) -> str | None:
    if value is not None and not value.startswith(("/", "http://", "https://")):
        raise invalid(f"{value!r} is neither a path nor a URL", "write one such as /lab?token={token}")
    return value


def checked_name(value: str) -> str:
    if not APP_PATTERN.fullmatch(value):
        raise invalid(f"{value!r} is not an app's name", "use lower-case letters, digits and dashes, 32 at most")
    return value

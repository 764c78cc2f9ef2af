"""The part of the session spec that says when a session ends for not being used."""

from collections.abc import Iterator

from pydantic import Field

from muster.core.spec.base import SpecModel, flag
from muster.core.spec.values import Seconds
from muster.core.values.errors import FieldError


class IdleFields(SpecModel):
    idle_timeout: Seconds | None = Field(
        default=None,
        description="the session ends after this time without use: 30m, 2h; the site's timeout if not given",
        json_schema_extra=flag("--idle-timeout", metavar="TIME"),
    )
    no_idle_check: bool = Field(
        default=False,
        description="do not end it for being idle, where the site allows that",
        json_schema_extra=flag("--no-idle-check"),
    )

    def _idle_errors(self) -> Iterator[FieldError]:
        if self.no_idle_check and self.idle_timeout is not None:
            yield FieldError("no_idle_check", "idle_timeout is given as well", "give one of them")

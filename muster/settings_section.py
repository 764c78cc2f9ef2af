"""What the parts of the site's settings have in common."""

import difflib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from muster.core.spec.values import invalid

# Bounds of numbers: neither a wait nor a sum or quotient of them leaves what programs and clocks can count.
MOST_SECONDS = 10**9
MOST_AMOUNT = 10**18
"""A number that all programs write and read alike."""
MOST_COUNT = 10**9
LEAST_WEIGHT = 0.000001
MOST_WEIGHT = 1_000_000.0

Span = Annotated[float, Field(ge=0, le=MOST_SECONDS)]
"""Seconds, which may be none."""
Interval = Annotated[float, Field(ge=0.001, le=MOST_SECONDS)]
"""Seconds between two things that happen one after the other."""
Amount = Annotated[int, Field(ge=0, le=MOST_AMOUNT)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Weight = Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]
"""A share weight: what an owner used is divided by it."""


def _absolute(path: Path) -> Path:
    # Commands and the daemon, which begin in different directories, would each find another one.
    if not path.is_absolute():
        raise invalid(f"{str(path)!r} is not an absolute path", "write a path that begins with /")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class Section(BaseModel):
    """A part of the settings with keys of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, content: object) -> object:
        for key in content if isinstance(content, dict) else ():
            if key not in cls.model_fields:
                near = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(cls.model_fields)}"
                raise invalid(f"there is no key {key!r}", hint)
        return content

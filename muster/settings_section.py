"""What the parts of the site's settings have in common."""

import difflib

from pydantic import BaseModel, ConfigDict, model_validator

from muster.core.spec.values import invalid


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

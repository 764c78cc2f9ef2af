"""What all views have in common: one shape for `--json`, the REST API and its client."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from muster.core.values.units import timestamp


class View(BaseModel):
    """An answer of the API. Later versions may add fields; no field is taken away."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; a field that was never set is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def json_text(self) -> str:
        """Return `as_json` as JSON."""
        return self.model_dump_json(by_alias=True, exclude_unset=True)


def _seconds(value: object) -> object:
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value


Moment = Annotated[
    float,
    BeforeValidator(_seconds),
    PlainSerializer(timestamp, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Seconds since the epoch; RFC 3339 in UTC as JSON."""

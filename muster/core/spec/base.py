"""What the models of the spec have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from muster.core.spec.values import invalid


class SpecModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="after")
    @classmethod
    def _no_nul_bytes(cls, value: object) -> object:
        if isinstance(value, str) and "\0" in value:
            raise invalid("it holds a NUL byte", "remove it")
        return value


def flag(*names: str, metavar: str | None = None, multiple: bool = False, reads_file: bool = False) -> dict[str, Any]:
    """Return a field's `json_schema_extra` for the command line; `reads_file`: there it is a path to the text."""
    return {"flags": list(names), "metavar": metavar, "multiple": multiple, "reads_file": reads_file}

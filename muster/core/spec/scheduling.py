"""The part of the session spec that says when and where a session may start."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from muster.core.spec.base import Bounds, SpecModel, flag
from muster.core.spec.values import Array, Moment, Names, Seconds, assignments, invalid
from muster.core.values.array import array_indexes, array_most
from muster.core.values.errors import FieldError

MAX_PRIORITY = 100
MAX_DEPENDENCIES = 10_000
MAX_ARRAY_BYTES = 128 << 10
LABEL_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?")


class SchedulingFields(SpecModel):
    priority: int = Field(
        default=50,
        ge=0,
        le=MAX_PRIORITY,
        description="0 to 100; higher goes first; above 50 only where the site allows it",
        json_schema_extra=flag("--priority", metavar="0-100"),
    )
    time_limit: Seconds | None = Field(
        default=None,
        description="the session ends after this time: minutes, 30m, 2h, 1-12:00:00",
        json_schema_extra=flag("--time-limit", "-t", metavar="TIME"),
    )
    resource_group: str = Field(
        default="default",
        min_length=1,
        max_length=255,
        description="agents that may run it",
        json_schema_extra=flag("--resource-group", "-g", metavar="GROUP"),
    )
    project: str = Field(
        default="default",
        min_length=1,
        max_length=255,
        description="project that it counts for",
        json_schema_extra=flag("--project", "-P", metavar="PROJECT"),
    )
    after: Annotated[Names, Bounds(most_items=MAX_DEPENDENCIES)] = Field(
        default=(),
        description="start once this session, or all of this array, has started",
        json_schema_extra=flag("--after", metavar="SESSION", multiple=True),
    )
    after_ok: Annotated[Names, Bounds(most_items=MAX_DEPENDENCIES)] = Field(
        default=(),
        description="start once this session, or all of this array, has succeeded",
        json_schema_extra=flag("--after-ok", metavar="SESSION", multiple=True),
    )
    after_any: Annotated[Names, Bounds(most_items=MAX_DEPENDENCIES)] = Field(
        default=(),
        description="start once this session, or all of this array, has ended, however it did",
        json_schema_extra=flag("--after-any", metavar="SESSION", multiple=True),
    )
    begin: Moment = Field(
        default=None,
        description="do not start before this time: 2026-11-22T08:00, 08:00 or now+2h",
        json_schema_extra=flag("--begin", metavar="TIME"),
    )
    hold: bool = Field(
        default=False,
        description="do not start until it is released",
        json_schema_extra=flag("--hold", "-H"),
    )
    array: Annotated[Array, Bounds(MAX_ARRAY_BYTES)] = Field(
        default=None,
        description="one session for each index, such as 0-99, 1,3,5 or 0-99%8: 8 at a time",
        json_schema_extra=flag("--array", "-a", metavar="INDEXES"),
    )
    preemptible: bool = Field(
        default=False,
        description="may be ended, or queued again if it has requeue, for a session of higher priority",
        json_schema_extra=flag("--preemptible"),
    )
    gpu_models: Names = Field(
        default=(),
        description="GPU model that it may get; any of those given",
        json_schema_extra=flag("--gpu-model", metavar="MODEL", multiple=True),
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="label that its agents must have, such as disk=ssd",
        json_schema_extra=flag("--label", "-l", metavar="NAME=VALUE", multiple=True),
    )
    agents: Names = Field(
        default=(),
        description="agent that it may run on; any of those given",
        json_schema_extra=flag("--agent", "-w", metavar="AGENT", multiple=True),
    )
    exclude_agents: Names = Field(
        default=(),
        description="agent that it may not run on",
        json_schema_extra=flag("--exclude-agent", "-x", metavar="AGENT", multiple=True),
    )
    topology: Literal["any", "prefer-rack", "one-rack"] = Field(
        default="prefer-rack",
        description="whether a gang over several agents stays in one rack",
        json_schema_extra=flag("--topology"),
    )

    @field_validator("labels", mode="before")
    @classmethod
    def _labels(cls, value: object) -> object:
        return assignments(value, _check_label)

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Return the session's dependencies: names as written, ids of sessions once it was submitted."""
        return self.after + self.after_ok + self.after_any

    @property
    def array_indexes(self) -> tuple[int, ...]:
        return array_indexes(self.array) if self.array else ()

    @property
    def array_most(self) -> int | None:
        """Return how many sessions of its array may be placed at once; None for any number."""
        return array_most(self.array) if self.array else None

    def _constraint_errors(self) -> Iterator[FieldError]:
        for agent in sorted(set(self.agents) & set(self.exclude_agents)):
            yield FieldError("exclude_agents", f"agent {agent} is asked for as well", "name it in one of the two")


def _check_label(name: str, content: object) -> None:
    if not LABEL_PATTERN.fullmatch(name):
        raise invalid(
            f"{name!r} is not a label's name", "use letters, digits, dots, dashes and slashes, as in disk=ssd"
        )
    if isinstance(content, dict | list):
        raise invalid(f"{name} is no text", "write a name and a value, as in disk=ssd")

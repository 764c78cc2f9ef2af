"""`/api/v1/use/over-time`: the capacity, allocations and usage of agents over time."""

from typing import Annotated

from fastapi import APIRouter, Query

from muster.core.usage.over_time import SPANS
from muster.core.values.errors import BadInputError
from muster.service.usage.views import UsageOverTimeView
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter()
Name = Annotated[str | None, Query(max_length=255)]


@router.get("/use/over-time", tags=["agents"], responses=answers(404))
def use_over_time(
    backend: Backend,
    *,
    span: Annotated[
        str,
        Query(max_length=20, description="the last `hour`, `day` or `week`", json_schema_extra={"enum": list(SPANS)}),
    ] = "hour",
    group: Name = None,
    agent: Name = None,
) -> UsageOverTimeView:
    """Return agents' capacity, allocation and usage over time: of all, of a resource group, or of one agent."""
    if group is not None and agent is not None:
        raise BadInputError("group: agent is set as well; set one of them")
    return UsageOverTimeView.of(backend.resources.use(span, group=group, agent=agent))

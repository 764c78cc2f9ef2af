"""`/api/v1/use/over-time`: the capacity, allocations and usage of agents over time."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from muster.core.values.errors import BadInputError
from muster.service.usage.over_time import use_over_time_json
from muster.web.api.models import View
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter()
Name = Annotated[str | None, Query(max_length=255)]


class AmountView(View):
    capacity: float
    allocated: float
    used: float | None = Field(description="null where no agent reported it")


class PointView(View):
    """Means over one step; all null if no agent was observed."""

    at: str = Field(description="begin of the step")
    cpu: AmountView | None = Field(description="in thousandths of a core")
    mem: AmountView | None = Field(description="in bytes")
    gpu: AmountView | None = Field(description="in thousandths of a GPU")
    gpu_mem: AmountView | None = Field(description="in bytes")


class UseView(View):
    span: str
    step_s: int
    since: str
    until: str
    points: list[PointView]


@router.get("/use/over-time", tags=["agents"], response_model=UseView, responses=answers(404, 422))
def use_over_time(
    backend: Backend,
    *,
    span: Annotated[str, Query(max_length=20, description="the last `hour`, `day` or `week`")] = "hour",
    group: Name = None,
    agent: Name = None,
) -> Response:
    """The capacity of agents, what was allocated of it and used: of all, of a resource group, or of one agent."""
    if group is not None and agent is not None:
        raise BadInputError("group: agent is set as well; set one of them")
    return JSONResponse(use_over_time_json(backend.resources.use(span, group=group, agent=agent)))

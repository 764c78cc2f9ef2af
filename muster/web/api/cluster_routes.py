"""`/api/v1`: the queue, the agents, the images, the version."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from muster.core.values.errors import BadInputError
from muster.service.agents.gpu_map import GpuUse, gpu_use_json
from muster.service.images.known import KnownImages, known_json, named_images
from muster.service.questions.views import queued_json
from muster.service.questions.what_if import Queued
from muster.web.api import models
from muster.web.api.requests import Replying
from muster.web.caller import Asked
from muster.web.problems import answers

router = APIRouter()
Labels = Annotated[list[str], Query(description="NAME=VALUE that the agent must have; all of those given")]
AgentId = Annotated[str, Path(max_length=255)]


@router.get("/queue", tags=["queue"], response_model=models.QueueView, responses=answers(422))
def queue(asked: Asked, reply: Replying, *, group: Annotated[str | None, Query(max_length=255)] = None) -> Response:
    """The sessions that wait, in the order in which they are tried."""
    found = [queued for queued in asked.queue() if group in {None, queued.session.spec.resource_group}]
    return reply(list[Queued], found, lambda queued: {"items": [queued_json(one) for one in queued]})


@router.get("/agents", tags=["agents"], response_model=models.AgentsView, responses=answers(422))
def agents(asked: Asked, *, label: Labels = []) -> Response:  # noqa: B006 - FastAPI copies it
    """What agents have, and what is free; of the sessions on them only those that the token's user may see."""
    return JSONResponse({"items": asked.agents(_labels(label))})


@router.get("/gpus", tags=["agents"], response_model=models.ItemsView, responses=answers(422))
def gpus(asked: Asked, reply: Replying, *, label: Labels = []) -> Response:  # noqa: B006
    """Who has which share of which GPU; of others' shares only how large they are."""
    found = asked.gpus(_labels(label))
    return reply(list[GpuUse], found, lambda uses: {"items": [gpu_use_json(use) for use in uses]})


@router.get("/agents/{agent}", tags=["agents"], response_model=models.AgentView, responses=answers(404))
def agent(asked: Asked, agent: AgentId) -> Response:
    return JSONResponse(asked.agent(agent))


@router.post("/agents/{agent}/drain", tags=["agents"], response_model=models.AgentView, responses=answers(404, 422))
def drain(asked: Asked, agent: AgentId, wanted: models.DrainRequest) -> Response:
    """No new sessions on it; those that run there go on. For administrators."""
    asked.drain(agent, wanted.reason)
    return JSONResponse(asked.agent(agent))


@router.post("/agents/{agent}/resume", tags=["agents"], response_model=models.AgentView, responses=answers(404))
def resume(asked: Asked, agent: AgentId) -> Response:
    """Sessions on it again. For administrators."""
    asked.resume(agent)
    return JSONResponse(asked.agent(agent))


@router.get("/images", tags=["images"], response_model=models.ItemsView, responses=answers())
def images(asked: Asked, reply: Replying) -> Response:
    """The image catalog, and which agents hold each image."""
    return reply(KnownImages, asked.known_images(), lambda known: {"items": list(map(known_json, known.images))})


@router.get("/images/{image:path}", tags=["images"], response_model=models.ItemsView, responses=answers(404, 422))
def image(
    asked: Asked,
    image: Annotated[
        str, Path(description="NAME for all versions; NAME:VERSION, an alias, a reference", max_length=400)
    ],
) -> Response:
    found = named_images(asked.known_images().images, image)
    return JSONResponse({"items": [known_json(one) for one in found]})


@router.get("/version", tags=["version"], response_model=models.VersionView, responses=answers())
def version(request: Request, asked: Asked) -> Response:
    del asked
    return JSONResponse({"muster": request.app.version, "api": "v1"})


def _labels(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, equals, _ in pairs:
        if not equals:
            raise BadInputError(f"label: {text!r} has no =; write NAME=VALUE")
    return {name: value for name, _, value in pairs}

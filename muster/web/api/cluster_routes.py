"""`/api/v1`: the queue, the agents, the images, several sessions, the version."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from muster.core.values.errors import BadInputError
from muster.service.agents.views import AgentsView, AgentView, GpusView
from muster.service.images.views import ImageRemovedView, ImagesView
from muster.service.questions.views import HeartbeatView, QueueView
from muster.service.sessions.views import SessionsView
from muster.web.api import models
from muster.web.api.requests import reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter()
Label = Annotated[str, Field(json_schema_extra={"pattern": "="})]
Labels = Annotated[
    list[Label], Query(description="a label that the agent must have, such as disk=ssd; several must all match")
]
AgentId = Annotated[str, Path(max_length=255)]


@router.get("/queue", tags=["queue"], response_model=QueueView, responses=answers())
def queue(backend: Backend, *, group: Annotated[str | None, Query(max_length=255)] = None) -> Response:
    """List the waiting sessions, in the order in which they are tried."""
    return reply(backend.queue(group))


@router.get("/queue/heartbeat", tags=["queue"], response_model=HeartbeatView, responses=answers())
def heartbeat(backend: Backend) -> Response:
    """Return whether something works the queue: `unworked` says for how long nothing did, if that is too long."""
    return reply(backend.heartbeat())


@router.get("/agents", tags=["agents"], responses=answers())
def agents(backend: Backend, *, label: Labels = []) -> AgentsView:  # noqa: B006 - FastAPI copies it
    """List agents with their capacity, what is free, and the sessions on them that the token's user may see."""
    return backend.agents(_labels(label))


@router.get("/gpus", tags=["agents"], response_model=GpusView, responses=answers())
def gpus(backend: Backend, *, label: Labels = []) -> Response:  # noqa: B006
    """List GPUs with their shares; of other users' shares only the size."""
    return reply(backend.gpus(_labels(label)))


@router.get("/agents/{agent}", tags=["agents"], responses=answers(404))
def agent(backend: Backend, agent: AgentId) -> AgentView:
    return backend.agent(agent)


@router.post("/agents/{agent}/drain", tags=["agents"], responses=answers(404))
def drain(backend: Backend, agent: AgentId, request: models.DrainRequest) -> AgentView:
    """Let no session start on the agent; those that run there continue. For administrators."""
    backend.drain(agent, request.reason)
    return backend.agent(agent)


@router.post("/agents/{agent}/resume", tags=["agents"], responses=answers(404))
def resume(backend: Backend, agent: AgentId) -> AgentView:
    """Let sessions start on the agent again. For administrators."""
    backend.resume(agent)
    return backend.agent(agent)


@router.get("/images", tags=["images"], response_model=ImagesView, responses=answers())
def images(backend: Backend) -> Response:
    """List the image catalog, and the agents that have each image."""
    return reply(backend.images.all())


@router.get("/images/{image:path}", tags=["images"], responses=answers(404))
def image(
    backend: Backend,
    image: Annotated[
        str,
        Path(
            description="a name for all versions; a name with a version, such as torch:2.4; an alias; a reference",
            max_length=400,
        ),
    ],
) -> ImagesView:
    return backend.images.named(image)


@router.delete("/images/{image:path}", tags=["images"], response_model=ImageRemovedView, responses=answers(404, 409))
def remove_image(
    backend: Backend,
    image: Annotated[str, Path(description="NAME:TAG", max_length=400, pattern=r"^[^\x00]*$")],
) -> Response:
    """Remove an image that a commit has made, from all agents and the catalog: for its author and administrators.

    It stays in the catalog while an agent cannot remove it; repeat the request once that answers.
    """
    return reply(backend.images.remove(image))


@router.get("/lookup", tags=["sessions"], response_model=SessionsView, responses=answers(404, 409))
def look_up(
    backend: Backend,
    session: Annotated[
        list[Annotated[str, Field(max_length=255, pattern=r"^[^\x00]*$")]],
        Query(description="names, ids or starts of ids; an array's name means all of it", max_length=20),
    ] = [],  # noqa: B006
) -> Response:
    """Show several sessions, each once."""
    return reply(SessionsView(items=backend.named(session)))


@router.get("/version", tags=["version"], response_model=models.VersionView, responses=answers())
def version(request: Request, backend: Backend) -> Response:
    del backend
    return JSONResponse({"muster": request.app.version, "api": "v1"})


def _labels(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, equals, _ in pairs:
        if not equals:
            raise BadInputError(f"label: {text!r} has no =; write a label such as disk=ssd")
    return {name: value for name, _, value in pairs}

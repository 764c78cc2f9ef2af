"""Routes for those who operate the server: its metrics, and whether it answers and can do its work.

They need no token, since they name no user and no session.
"""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from muster.core.values.errors import MusterError
from muster.web.api import metrics
from muster.web.api.models import Health
from muster.web.caller import service_of

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
def show_metrics(request: Request) -> Response:
    return Response(metrics.exposition(request.app.state.meter), media_type=metrics.CONTENT_TYPE)


@router.get("/healthz")
async def check_health() -> Health:
    """The server answers."""
    return Health(status="ok")


@router.get("/readyz")
def check_readiness(request: Request) -> Response:
    """It can do its work: the database answers too, and somebody works the queue if there is something to do."""
    try:
        unworked = service_of(request).heartbeat().unworked
    except MusterError:
        return JSONResponse({"status": "the database does not answer"}, 503)
    if unworked is not None:
        return JSONResponse({"status": unworked}, 503)
    return JSONResponse({"status": "ok"})

"""Routes for those who operate the server: its metrics, and whether it answers and can do its work.

They name no user and no session. Metrics need a token, but from the networks that the site names.
"""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from muster.core.values.errors import MusterError
from muster.web.api import metrics
from muster.web.api.models import Health
from muster.web.caller import Credentials, caller, service_of

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
def show_metrics(request: Request, credentials: Credentials) -> Response:
    """Return the cluster's numbers for Prometheus."""
    token = None if _is_from_scraper(request) else caller(request, credentials)
    measures = request.app.state.meter.measure(token)
    return Response(metrics.exposition(measures, request.app.state.request_counts), media_type=metrics.CONTENT_TYPE)


def _is_from_scraper(request: Request) -> bool:
    # What a proxy on this machine passes on comes from this machine, but was sent from anywhere.
    if any(name in request.headers for name in ("forwarded", "x-forwarded-for")):
        return False
    return request.client is not None and service_of(request).settings.web.may_read_metrics(request.client.host)


@router.get("/healthz")
async def check_health() -> Health:
    """Say that the server answers."""
    return Health(status="ok")


@router.get("/readyz")
def check_readiness(request: Request) -> Response:
    """Say whether the server can do its work: the database answers, and the queue is worked if it has work."""
    try:
        unworked = service_of(request).heartbeat().unworked
    except MusterError:
        return JSONResponse({"status": "the database does not answer"}, 503)
    if unworked is not None:
        return JSONResponse({"status": unworked}, 503)
    return JSONResponse({"status": "ok"})

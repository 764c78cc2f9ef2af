"""The server as an ASGI application: the API, the pages and what protects them."""

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing, nullcontext
from importlib.metadata import version
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import RedirectResponse

from muster.core.spec.session_spec import SessionSpec
from muster.service.service import Service
from muster.web.caller import FailureLimit, RequestLimit
from muster.web.head_requests import HeadRequests
from muster.web.opened_apps.gateway import AppGateway
from muster.web.opened_apps.server import AppAddresses
from muster.web.pages.errors import error_page, to_sign_in
from muster.web.problems import Problem, install
from muster.web.protection import Audit, CountedRequests, RequestCounts, RequestSize, SecurityHeaders
from muster.web.rendering import STATIC, CachedFiles
from muster.web.routes import PREFIX, all_routes
from muster.web.shared_work import SharedWork
from muster.web.streams.file_content import is_upload
from muster.web.viewer import NotSignedInError, is_known
from muster.web.words import plain_words

_THREADS = 100
_DESCRIPTION = """Cluster sessions on plain Docker hosts. Each request carries `Authorization: Bearer TOKEN`, with a
token made by `muster token create`; it sees and changes what its scope allows. Errors are `application/problem+json`.
"""


def make_app(service: Service, *, secure: bool = False, apps: AppAddresses | None = None) -> FastAPI:
    """Return the application. `secure`: it is reached by TLS. `apps`: where opened apps are served, if anywhere."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        gateway: AppGateway | None = app.state.app_gateway
        with app.state.live.running(), closing(app.state.watched):
            async with nullcontext() if gateway is None else gateway.running():
                yield

    app = FastAPI(
        title="Muster",
        version=version("muster"),
        description=_DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        # FastAPI's pages of documentation load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.live = service.live_changes()
    app.state.watched = service.usage_cache()
    app.state.failures = FailureLimit()
    app.state.requests = RequestLimit(service.settings.web.requests_per_minute)
    app.state.log_streams = set()
    app.state.subscribers = set()
    app.state.terminals = set()
    app.state.programs = set()
    app.state.file_streams = set()
    app.state.app_gateway = None if apps is None else AppGateway(service, apps, app.state.live)
    app.state.meter = service.meter()
    app.state.live_parts = SharedWork[str]()
    app.state.request_counts = RequestCounts()
    app.router.routes.extend(all_routes())
    app.add_api_route("/openapi.json", _to_document, include_in_schema=False)
    app.mount("/static", CachedFiles(directory=STATIC))
    install(app, error_page, plain_words)
    app.add_exception_handler(NotSignedInError, _ask_to_sign_in)
    # The last one added is the outermost.
    app.add_middleware(HeadRequests)
    app.add_middleware(RequestSize, is_known=is_known, is_streamed=is_upload)
    app.add_middleware(Audit, log=service.audit_log())
    app.add_middleware(SecurityHeaders, secure=secure)
    app.add_middleware(CountedRequests, counts=app.state.request_counts)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return app


async def _to_document() -> Response:
    return RedirectResponse(f"{PREFIX}/openapi.json", 308)


async def _ask_to_sign_in(request: Request, _error: Exception) -> Response:
    return to_sign_in(request)


def _document(app: FastAPI) -> dict[str, Any]:
    """Return the API's OpenAPI 3.1 document, with the session spec's own schema as the body of a submit."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = made["components"]["schemas"]
        for operations in made["paths"].values():
            for operation in operations.values():
                _remove_nulls(operation.get("parameters", ()))
        reference = "#/components/schemas/{model}"
        for model in (SessionSpec, Problem):
            schema = model.model_json_schema(mode="validation", ref_template=reference)
            schemas |= schema.pop("$defs", {})
            schemas[model.__name__] = schema
        app.openapi_schema = made
    return app.openapi_schema


def _remove_nulls(parameters: Iterable[dict[str, Any]]) -> None:
    """Let no parameter be null: what is left out is None in Python, but nothing that a URL or a header can hold."""
    for parameter in parameters:
        kinds = [kind for kind in parameter["schema"].pop("anyOf", ()) if kind != {"type": "null"}]
        if kinds:
            (kind,) = kinds
            parameter["schema"] |= kind

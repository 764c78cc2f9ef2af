"""All routes of the server."""

from collections.abc import Sequence
from functools import cache

from fastapi import APIRouter, Depends
from starlette.routing import BaseRoute

from muster.web.api import (
    agent_usage_routes,
    cluster_routes,
    commit_routes,
    folder_routes,
    limit_routes,
    operation_routes,
    preset_routes,
    reservation_routes,
    secret_routes,
    session_routes,
    token_routes,
    usage_routes,
)
from muster.web.api.parameters import check_parameters
from muster.web.pages import (
    account_page,
    folder_files_page,
    folders_page,
    images_page,
    limits_page,
    live,
    overview_page,
    queue_page,
    reservations_page,
    resources_page,
    sign_in,
)
from muster.web.pages.launch import page as launch_page
from muster.web.pages.sessions import actions as session_actions
from muster.web.pages.sessions import app_page, log_dialog, terminal_page
from muster.web.pages.sessions import list_page as sessions_page
from muster.web.pages.sessions import page as session_page
from muster.web.pages.usage import page as usage_page
from muster.web.streams import event_routes, folder_file_routes, log_routes, program, terminal

PREFIX = "/api/v1"
_API = (
    log_routes,
    session_routes,
    commit_routes,
    folder_routes,
    folder_file_routes,
    secret_routes,
    preset_routes,
    token_routes,
    usage_routes,
    agent_usage_routes,
    cluster_routes,
    reservation_routes,
    limit_routes,
    event_routes,
)
_PAGES = (
    sign_in,
    overview_page,
    launch_page,
    live,
    sessions_page,
    session_page,
    session_actions,
    app_page,
    log_dialog,
    terminal_page,
    terminal,
    queue_page,
    resources_page,
    reservations_page,
    limits_page,
    usage_page,
    images_page,
    account_page,
    folders_page,
    folder_files_page,
)


@cache
def all_routes() -> Sequence[BaseRoute]:
    """Return the routes of the API, of operations and of the pages, for any number of applications.

    They are made once in a process: FastAPI keeps what it worked out of a route's parameters with the route, and to
    work that out takes a good part of a second. They find the service in the state of the application that is called.
    """
    router = APIRouter()
    for routes in _API:
        router.include_router(routes.router, prefix=PREFIX, dependencies=[Depends(check_parameters)])
    router.include_router(program.router, prefix=PREFIX)
    router.include_router(operation_routes.router)
    for page in _PAGES:
        router.include_router(page.router)
    return router.routes

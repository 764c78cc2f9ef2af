"""Requests that schemathesis makes of the API's document, by a seed: how many were sent, and what was wrong."""

import itertools
import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
import uvicorn
from fastapi import FastAPI
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import Failure
from schemathesis.engine import events, from_schema
from schemathesis.engine.recorder import Interaction

from muster.core.model.token import Scope
from muster.core.values.errors import MusterError
from muster.service.service import Service
from muster.settings import load_settings
from muster.store.store import Store
from muster.web.app import make_app
from muster.web.caller import FailureLimit
from tests.command_line import write_settings
from tests.strategies.agents import make_agent

_EXAMPLES = 40
_PHASES = ("examples", "coverage", "fuzzing", "stateful")
_SPECS = ("POST /api/v1/sessions", "POST /api/v1/sessions/dry-run")
_ACTIONS = ("terminate", "cancel", "hold", "release", "restart", "extend")
# What JSON Schema cannot say: that two fields exclude each other, what a cursor, a point or a span of time is, or a
# path within a folder, which characters can be printed, and that a spec's numbers may be written as texts.
# `tests/hostile/fuzzing.py` is about specs.
_OF_PATHS = (
    ("GET", "files"),
    ("DELETE", "files"),
    ("POST", "files/rename"),
    ("GET", "content"),
    ("PUT", "content"),
    ("POST", "directories"),
)
_BEYOND_SCHEMA = {
    _SPECS[0]: ("positive_data_acceptance", "negative_data_rejection"),
    # A session may have the name of an action: then the path is the session's as well, with other methods.
    _SPECS[1]: ("positive_data_acceptance", "negative_data_rejection", "allow_header_conformance"),
    "PATCH /api/v1/sessions/{session}": ("positive_data_acceptance", "negative_data_rejection"),
    **{f"POST /api/v1/sessions/{action}": ("allow_header_conformance",) for action in _ACTIONS},
    "POST /api/v1/sessions/{session}/commit": ("positive_data_acceptance",),
    # A header is a text, of a number too.
    "GET /api/v1/events": ("negative_data_rejection",),
    "GET /api/v1/sessions": ("positive_data_acceptance",),
    "GET /api/v1/report": ("positive_data_acceptance",),
    "GET /api/v1/use/over-time": ("positive_data_acceptance",),
    "POST /api/v1/reservations/{reservation}": ("positive_data_acceptance",),
    "PUT /api/v1/presets/{preset}": ("positive_data_acceptance", "negative_data_rejection"),
    "POST /api/v1/tokens/{token}": ("positive_data_acceptance",),
    **{f"{request} /api/v1/folders/{{folder}}/{what}": ("positive_data_acceptance",) for request, what in _OF_PATHS},
}


# A session that was ended is still to be read, and may be what a submit with an earlier key is answered with.
_OF_A_SESSION = r"^[A-Z]+ /api/v1/sessions/\{session\}"
_OF_WHAT_IS_DELETED = ("use_after_free", "ensure_resource_availability")


@dataclass
class Tried:
    """A count of requests by phase and of answers by status, with a line for each wrong one."""

    calls: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, event: events.ScenarioFinished) -> None:
        sent = event.recorder.interactions
        self.calls[event.phase.value] += len(sent)
        self.statuses.update(one.response.status_code for one in sent.values() if one.response is not None)
        self.wrong += [
            _line(check.failure_info.failure, sent.get(case))
            for case, checks in event.recorder.checks.items()
            for check in checks
            if check.failure_info is not None
        ]


def _line(failure: Failure, sent: Interaction | None) -> str:
    said = " ".join(f"{failure.title}: {failure.message}".split())
    if sent is None:
        return said
    answer = None if sent.response is None else sent.response.content[:300]
    return f"{sent.request.method} {sent.request.uri:.200} {sent.request.body!r:.300}: {said:.500}: {answer!r}"


class _Tracebacks(logging.Handler):
    """A collector of what the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"logged: {self.format(record)[-600:]}")


def fuzzed_api(seed: int, count: int, first: int = 0) -> Tried:
    """Send at least `count` requests to a server of its own, to all operations, and return what came of them.

    Examples, and what covers the schema, are sent where `first` is 0: they would be the same again.
    """
    tried = Tried()
    with _served_api() as (url, token):
        if first == 0:
            try_operations(url, token, seed, tried)
        for further in itertools.count(seed * 1_000_000 + first + 1):
            if tried.calls.total() >= count:
                break
            try_operations(url, token, further, tried, _PHASES[2:], max_examples=_EXAMPLES)
    return tried


def fuzzed_api_briefly(seed: int) -> Tried:
    """Send a few requests to all operations, in all phases."""
    tried = Tried()
    with _served_api() as (url, token):
        try_operations(url, token, seed, tried, is_brief=True, max_examples=2)
    return tried


def try_operations(
    url: str,
    token: str,
    seed: int,
    tried: Tried,
    phases: Sequence[str] = _PHASES,
    *,
    is_brief: bool = False,
    max_examples: int = 10,
) -> None:
    """Send requests to all operations in these phases, and add to `tried` what came of them."""
    operations: list[dict[str, Any]] = [
        {"include-name": name, "checks": {check: {"enabled": False} for check in checks}}
        for name, checks in _BEYOND_SCHEMA.items()
    ]
    operations.append(
        {"include-name-regex": _OF_A_SESSION, "checks": {check: {"enabled": False} for check in _OF_WHAT_IS_DELETED}}
    )
    if is_brief:
        # What takes schemathesis seconds: the many fields of a spec, and secrets of 64 KiB.
        off = {"enabled": False}
        secret = {"include-name": "PUT /api/v1/secrets/{secret}", "phases": {"coverage": off, "fuzzing": off}}
        operations = [
            *(
                {**one, **({"phases": {"coverage": off}} if one.get("include-name") in _SPECS else {})}
                for one in operations
            ),
            secret,
        ]
    generation = {"max-examples": max_examples, "database": "none", "deterministic": True, "no-shrink": True}
    config = SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "continue-on-failure": True,
            "headers": {"Authorization": f"Bearer {token}"},
            "max-stream-events": 1,
            "request-timeout": 60,
            "suppress-health-check": ["all"],
            "generation": generation,
            "phases": {phase: {"enabled": phase in phases} for phase in _PHASES},
            "operations": operations,
        }
    )
    document = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json", config=config, timeout=60)
    tracebacks = _Tracebacks()
    logging.getLogger().addHandler(tracebacks)
    try:
        for event in from_schema(document).execute():
            if isinstance(event, events.ScenarioFinished):
                tried.note(event)
            elif isinstance(event, events.NonFatalError):
                tried.wrong.append(f"schemathesis: {event.label}: {event.value!r:.500}")
            elif isinstance(event, events.FatalError):
                raise event.exception
    finally:
        logging.getLogger().removeHandler(tracebacks)
    tried.wrong += tracebacks.lines


@contextmanager
def _served_api() -> Iterator[tuple[str, str]]:
    """Serve a new control node's API, with an agent and a session; yield its URL and an administrator's token."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "state").mkdir(mode=0o700)
        settings = load_settings(write_settings(directory, {"web": {"requests_per_minute": None}}))
        store = Store(settings.database_url)
        store.agents.save([make_agent("a1")])
        service = Service(store, settings)
        _, token = service.tokens.create("fuzz", "root", Scope.ADMIN, None)
        app = make_app(service)
        # The tests of authentication send wrong tokens, and expect 401.
        app.state.failures = FailureLimit(10**9)
        with _serving(app) as url, _changing(service):
            yield url, token
        store.close()


@contextmanager
def _serving(app: FastAPI) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def _changing(service: Service) -> Iterator[None]:
    """Keep changing a session: schemathesis reads a stream of events until one comes."""
    stop = threading.Event()
    session = service.commands.submit({"name": "changing", "command": "true"}, "root", 1)[0].id

    def change() -> None:
        while not stop.wait(0.05):
            # A request may have ended it.
            with suppress(MusterError):
                service.commands.hold([session], "root")
                service.commands.release([session], "root")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

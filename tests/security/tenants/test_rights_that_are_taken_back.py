"""An administrator who is one no more: what they opened before shows nothing of others any more.

Unix users lose a group, and the provider's last word gives a sign-in fewer rights. Neither ends what was shown for it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient

from muster.core.model.token import Scope
from muster.service.owned_reach import OwnedReach
from muster.service.reach.logs import LogRequest
from muster.web.app import make_app
from muster.web.separation.client import brokered_service
from muster.web.streams import log_stream, subscribers
from tests.security.clients.taken_over_server import brokered_server
from tests.strategies.sessions import make_session, placed_on
from tests.unit.web.conftest import ServedNode
from tests.unix_users import ADA, uid_of
from tests.waiting import eventually

LOG = "/sessions/of-eve/kernels/main1/log"
# More than a stream takes to end, whose right is looked up without a pause.
_LONGEST_S = 30.0


class Written:
    """A log that goes on until it is closed, or for as long as a test can wait."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.is_open = threading.Event()
        self.ran_out = False

    def __iter__(self) -> Iterator[bytes]:
        self.is_open.set()
        for _ in range(int(_LONGEST_S / 0.05)):
            yield b"of eve's program\n"
            if self.closed.wait(0.05):
                return
        self.ran_out = True

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def written(service: ServedNode, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Let a session of Eve's run, and return its log."""
    monkeypatch.setattr(log_stream, "CHECK_S", 0.01)
    monkeypatch.setattr(subscribers, "HEARTBEAT_S", 0.01)
    service.store.add([placed_on(make_session(1, name="of-eve", owner="eve"), "a1")])
    made = Written()

    @contextmanager
    def log(reach: OwnedReach, reference: str, kernel: str | None, request: LogRequest) -> Iterator[Written]:
        reach.find(reference)
        assert (kernel, request.follow) == ("main1", True)
        yield made

    monkeypatch.setattr(OwnedReach, "log", log)
    return made


@contextmanager
def once(is_so: Callable[[], object], does: Callable[[], object]) -> Iterator[None]:
    """Do something as soon as something is so, beside what the context does."""
    waiting = threading.Thread(target=lambda: (eventually(is_so), does()))
    waiting.start()
    yield
    waiting.join()


def test_a_sign_in_that_gives_less_than_before_reads_no_others_log_on(app, service, written):
    def signs_in(scope: Scope) -> str:
        token = service.service.tokens.renewed("oidc:ann", "ann", scope, 3600)
        return service.service.tokens.sign_in(token)[0]

    with TestClient(app, cookies={"muster": signs_in(Scope.ADMIN)}) as ann:
        with once(written.is_open.is_set, lambda: signs_in(Scope.USER)):
            assert ann.get(LOG, params={"follow": True}).text.startswith("of eve's")
        assert not written.ran_out
        # They are signed in, as a user like others.
        assert ann.get("/sessions").status_code == 200
        assert ann.get(LOG).status_code == 404


@pytest.mark.parametrize("path", ["/api/v1/events", f"/api/v1{LOG}?follow=true"])
def test_who_leaves_the_administrators_group_reads_nothing_of_others_on(service, written, path):
    callers = service.service.unix_callers
    object.__setattr__(service.settings, "admin_group", ADA)
    connection = callers.admit(uid_of(ADA))
    ended_late = threading.Timer(_LONGEST_S, callers.forget, [connection])

    def leaves() -> None:
        object.__setattr__(service.settings, "admin_group", None)
        ended_late.start()

    with brokered_server(service.service) as server:
        app = make_app(brokered_service(server.line))
        with TestClient(app) as ada:
            # As the server has it of a connection by the socket.
            ada.app_state["muster.connection"] = connection
            with once(lambda: app.state.subscribers or written.is_open.is_set(), leaves):
                assert ada.get(path).status_code == 200
            assert not written.ran_out
            assert not ended_late.finished.is_set()
            ended_late.cancel()
            assert ada.get("/api/v1/sessions", params={"ended": True}).json()["items"] == []

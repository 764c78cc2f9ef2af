"""`muster.client` over HTTP, without an agent: what programs submit, wait for and cancel. Sessions run in tests/e2e."""

import ssl
from collections.abc import Iterator
from dataclasses import replace

import pytest

from muster import client
from muster.client import (
    AmbiguousNameError,
    BadInputError,
    Client,
    NameTakenError,
    NotFoundError,
    NotPossibleInStateError,
    ServerError,
    SessionState,
    SpecError,
)
from tests.unit.running_sessions import running_session


@pytest.fixture
def ada(server, secret_of) -> Iterator[Client]:
    with Client(server, secret_of("ada")) as made:
        yield made


SPEC = {"cpu": 1, "mem": "64M", "command": "true"}


def test_what_is_submitted_is_listed_shown_and_cancelled(ada):
    first = ada.submit(SPEC, name="first", hold=True)
    assert (first.owner, first.state, first.type) == ("ada", SessionState.PENDING, "batch")
    more = ada.submit_many({**SPEC, "name": "more"}, count=2)
    assert [one.name for one in ada.sessions()] == ["first", "more-1", "more-2"]
    assert ada.session(first).story[0].to is SessionState.PENDING
    assert ada.session("more-2").id == more[1].id
    assert [one.state for one in ada.cancel(first, "more-1")] == [SessionState.CANCELLED] * 2
    assert [one.name for one in ada.sessions()] == ["more-2"]
    assert len(ada.sessions(ended=True)) == 3
    assert [one.name for one in ada.sessions(states=[SessionState.CANCELLED])] == ["first", "more-1"]


def test_what_returns_one_session_changes_none_of_an_array(ada, service):
    with pytest.raises(BadInputError, match="array: 0-2 makes 3 sessions; use submit_many"):
        ada.submit(SPEC, array="0-2")
    with pytest.raises(SpecError, match="array: "):
        ada.submit(SPEC, array="2-0")
    assert ada.sessions() == []
    assert ada.submit(SPEC, name="one", array="7").array_index == 7
    array = [
        running_session(number, "a1", owner="ada", name=f"part-{number}", array_id="p", array_index=number)
        for number in (1, 2)
    ]
    service.store.add(
        [replace(one, spec=one.spec.model_copy(update={"name": "part", "time_limit": 60})) for one in array]
    )
    with pytest.raises(AmbiguousNameError):
        ada.extend("part", 60)
    assert [service.store.get([one.id])[one.id].extended_s for one in array] == [0, 0]
    assert ada.extend("part-1", 60).time_limit_s == 120
    assert ada.extend(ada.session("part-2"), 60).name == "part-2"


def test_a_client_without_tls_reads_no_authorities(server, secret_of, monkeypatch):
    read: list[ssl.Purpose] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda _context, purpose: read.append(purpose))
    with Client(server, secret_of("ada")) as by_http:
        assert by_http.sessions() == []
    with Client("https://localhost:1", "a-token"):
        assert read == [ssl.Purpose.SERVER_AUTH]


def test_waiting_ends_with_the_session_and_says_each_change(ada):
    first, second = ada.submit_many({**SPEC, "name": "two"}, count=2)
    seen: list[list[SessionState]] = []

    def cancel_both(now):
        seen.append([one.state for one in now])
        ada.cancel(*(one for one in now if one.state is SessionState.PENDING))

    ended = ada.wait_all([first, second], changed=cancel_both)
    assert [one.id for one in ended] == [first.id, second.id]
    assert seen[0] == [SessionState.PENDING] * 2
    assert seen[-1] == [one.state for one in ended] == [SessionState.CANCELLED] * 2
    # One that ended before it ran is returned all the same.
    assert ada.wait(first, until="running").state is SessionState.CANCELLED


def test_waiting_no_longer_than_one_wants(ada):
    waiting, cancelled = ada.submit_many({**SPEC, "name": "two"}, count=2)
    ada.cancel(cancelled)
    with pytest.raises(TimeoutError, match=r"^after 0 s, two-1 is PENDING$"):
        ada.wait_all([waiting, cancelled], timeout=0)


@pytest.mark.parametrize("until", ["started", "RUNNING", ""])
def test_what_nobody_can_wait_for_is_refused_at_once(ada, until):
    waiting = ada.submit(SPEC)
    with pytest.raises(BadInputError, match=r"until: .* is not known; write ended or running"):
        ada.wait(waiting, until=until, timeout=0)


def test_all_errors_of_a_spec_come_at_once(ada):
    with pytest.raises(SpecError) as raised:
        ada.submit(cpu="lots", mem="3X")
    assert {error.field for error in raised.value.errors} == {"cpu", "mem"}
    ada.submit(SPEC, name="taken")
    with pytest.raises(NameTakenError):
        ada.submit(SPEC, name="taken")


def test_a_forecast_changes_nothing(ada):
    (item,) = ada.forecast(SPEC).items
    assert not item.starts_now
    assert ada.sessions() == []


def test_others_sessions_are_not_found(ada, server, secret_of):
    theirs = ada.submit(SPEC, name="adas")
    with Client(server, secret_of("bob")) as bob:
        for ask in (bob.session, bob.wait, bob.logs, bob.cancel):
            with pytest.raises(NotFoundError):
                ask(theirs)
        with pytest.raises(NotFoundError):
            bob.run(theirs, ["id"])
    assert ada.session(theirs).state is SessionState.PENDING


def test_the_way_is_read_from_the_environment(server, secret_of, monkeypatch, tmp_path):
    monkeypatch.setenv("MUSTER_SERVER", server)
    monkeypatch.delenv("MUSTER_TOKEN", raising=False)
    with pytest.raises(BadInputError, match="token: there is none"):
        Client()
    monkeypatch.setenv("MUSTER_TOKEN", f"{secret_of('ada')}\n")
    with Client() as muster:
        assert muster.sessions() == []
    with Client(f"unix:{tmp_path}/nobody.sock") as muster, pytest.raises(ServerError, match="cannot be reached"):
        muster.sessions()
    with pytest.raises(BadInputError, match="names no socket"):
        Client("unix:relative.sock")


def test_what_the_module_gives_is_there_and_typed():
    assert all(hasattr(client, name) for name in client.__all__)


def test_a_session_that_waits_is_updated_and_one_of_an_array_alone(ada):
    job = ada.submit({**SPEC, "name": "later"}, begin="now+1h", env={"A": "1", "B": "2"})
    after = ada.update(job, {"cpu": 1}, begin=None, env={"A": None}, cpu=2)
    assert (after.id, after.slots.cpu, after.spec["env"], after.spec["begin"]) == (job.id, 2000, {"B": "2"}, None)
    with pytest.raises(SpecError) as refused:
        ada.update("later", mem="lots", nope=1)
    assert {error.field for error in refused.value.errors} == {"mem", "nope"}
    ada.submit_many({**SPEC, "name": "part"}, array="0-2")
    with pytest.raises(AmbiguousNameError):
        ada.update("part", cpu=2)
    assert ada.update("part-1", cpu=2).slots.cpu == 2000
    ada.cancel("later")
    with pytest.raises(NotPossibleInStateError, match="only a PENDING session can be updated"):
        ada.update(job, cpu=1)

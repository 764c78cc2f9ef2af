"""Deliveries, sealed secrets and renames, alike on every database."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from muster.core.lifecycle.transitions import transition
from muster.core.model.session import SessionState
from muster.core.notify.deliveries import LONGEST_WAIT_S, MAX_ATTEMPTS
from muster.core.values.errors import (
    BadInputError,
    NameTakenError,
    NotFoundError,
    NotPossibleInStateError,
    SettingsError,
)
from muster.seal import make_key
from muster.service.secrets.secrets import MOST_OF_ONE, Secrets
from muster.store.secrets import SealedSecret
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

AT_ONCE = 8
S = SessionState
URL = "https://hooks.example.org/x"


def due_words(deliveries, now: float = NOW) -> list[tuple[str, str | None, str]]:
    """Return all that is due, each session's and target's in their order."""
    received = []
    while due := deliveries.due(now):
        for delivery in due:
            received.append((delivery.target, delivery.from_state, delivery.to_state))
            deliveries.done(delivery)
    return received


@pytest.fixture
def followed(store):
    """Return a session with a callback that has been placed, beside one without."""
    session = make_session(1, callback=URL)
    store.add([session, make_session(2)])
    store.apply([transition(session, S.SCHEDULED, "placed", NOW)])
    return session


def test_a_callback_is_sent_each_change_of_its_session_in_order(store, followed):
    store.deliveries.gather([], NOW)
    store.deliveries.gather([], NOW)
    assert due_words(store.deliveries) == [("callback", None, "PENDING"), ("callback", "PENDING", "SCHEDULED")]
    scheduled = replace(followed, state=S.SCHEDULED)
    store.apply([transition(scheduled, S.PREPARING, "launching", NOW)])
    store.apply([transition(replace(followed, state=S.PREPARING), S.PREPARING, "all kernels answer", NOW)])
    store.deliveries.gather([], NOW)
    assert due_words(store.deliveries) == [("callback", "SCHEDULED", "PREPARING")]


@pytest.mark.usefixtures("followed")
def test_a_hook_is_sent_the_changes_of_all_sessions_since_it_was_added(store):
    store.deliveries.gather([], NOW)
    due_words(store.deliveries)
    store.add([make_session(3)])
    store.deliveries.gather(["note"], NOW)
    assert due_words(store.deliveries) == [("hook:note", None, "PENDING")]


def test_owners_of_callbacks_and_hooks_take_turns(store):
    """One owner's 600 callbacks to hosts that never answer once kept everybody else's waiting."""
    many = [make_session(number, owner="eve", callback=URL) for number in range(1, 601)]
    store.add([*many, make_session(601, owner="bob", callback=URL)])
    store.deliveries.gather(["note"], NOW)
    due = store.deliveries.due(NOW)
    assert len(due) == 500
    assert {(one.target, one.owner) for one in due[:3]} == {
        ("callback", "eve"),
        ("callback", "bob"),
        ("hook:note", "eve"),
    }
    eves = [one.session_name for one in due if one.target == "callback" and one.owner == "eve"]
    assert eves[:3] == ["s1", "s2", "s3"]


def test_a_failed_delivery_holds_up_the_next_ones_and_is_noted_once(store, followed):
    deliveries = store.deliveries
    deliveries.gather([], NOW)
    (first,) = deliveries.due(NOW)
    assert (first.url, first.message()["to"], first.attempts) == (URL, "PENDING", 0)
    deliveries.failed(first, "it is away", NOW)
    assert deliveries.due(NOW) == []
    (again,) = deliveries.due(NOW + 1)
    assert (again.event_id, again.attempts) == (first.event_id, 1)
    deliveries.failed(again, "it is still away", NOW)
    (later,) = deliveries.due(NOW + 2)
    deliveries.done(later)
    assert due_words(deliveries) == [("callback", "PENDING", "SCHEDULED")]
    notes = [line.reason for line in store.story(followed.id) if "failed" in line.reason]
    assert notes == ["callback failed: it is away"]
    assert store.find(followed.id).state is S.SCHEDULED
    # The note is no change of state.
    deliveries.gather([], NOW)
    assert due_words(deliveries) == []


def test_a_failed_delivery_is_retried_at_once_if_the_clock_is_set_back(store, followed):
    deliveries = store.deliveries
    deliveries.gather([], NOW)
    for attempt in range(12):
        at = NOW + attempt * LONGEST_WAIT_S
        deliveries.failed(deliveries.due(at)[0], "refused", at)
    at = NOW + 12 * LONGEST_WAIT_S
    assert deliveries.due(at - LONGEST_WAIT_S + 1) == [], "it waits for up to an hour"
    assert [due.session_id for due in deliveries.due(at - 3 * LONGEST_WAIT_S)] == [followed.id]


@pytest.mark.usefixtures("followed")
def test_a_delivery_that_fails_for_a_day_is_given_up_and_the_next_is_sent(store):
    store.deliveries.gather([], NOW)
    now = NOW
    for _ in range(MAX_ATTEMPTS):
        (delivery,) = store.deliveries.due(now)
        assert delivery.to_state == "PENDING"
        store.deliveries.failed(delivery, "no", now)
        now += 3600
    assert now > NOW + 20 * 3600
    assert due_words(store.deliveries, now) == [("callback", "PENDING", "SCHEDULED")]


def test_more_than_fits_into_one_transaction_is_gathered_whole(store):
    sessions = [make_session(number, callback=URL) for number in range(1, 502)]
    store.add(sessions)
    store.deliveries.gather(["note"], NOW)
    received = due_words(store.deliveries)
    assert (len(received), {target for target, *_ in received}) == (1002, {"callback", "hook:note"})


@pytest.fixture
def secrets(store, tmp_path) -> Secrets:
    return Secrets(store.secrets, tmp_path / "secrets.key")


def asking(name: str = "token", owner: str = "ada"):
    return replace(make_session(secrets=[name]), owner=owner)


def test_control_nodes_that_set_the_first_secrets_at_the_same_moment_do_not_seal_with_two_keys(
    url, open_store, tmp_path
):
    barrier = threading.Barrier(AT_ONCE)

    def set_first(number: int) -> None:
        node = Secrets(open_store(url).secrets, tmp_path / f"secrets-{number}.key")
        barrier.wait()
        with suppress(SettingsError):
            node.set("ada", f"s{number}", "hush", NOW)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(set_first, range(AT_ONCE)))
    assert len(open_store(url).secrets.key_ids()) == 1


def test_an_owner_has_so_many_secrets_at_the_most_and_may_change_each(secrets):
    for number in range(MOST_OF_ONE):
        secrets.set("ada", f"s{number}", "hush", NOW)
    with pytest.raises(BadInputError, match=f"^NAME: you have {MOST_OF_ONE} secrets; remove one of them first$"):
        secrets.set("ada", "one-more", "hush", NOW)
    secrets.set("ada", "s0", "changed", NOW)
    secrets.set("bob", "token", "hush", NOW)
    secrets.remove("ada", "s1")
    secrets.set("ada", "one-more", "hush", NOW)
    assert len(secrets.of("ada")) == MOST_OF_ONE


def test_a_secret_is_given_to_its_owners_sessions_and_stored_sealed(secrets):
    secrets.set("ada", "token", "hush", NOW)
    assert secrets.values(asking()) == {"token": "hush"}
    secrets.set("ada", "token", "changed", NOW + 1)
    assert secrets.values(asking()) == {"token": "changed"}
    assert [(s.name, s.changed_at) for s in secrets.of("ada")] == [("token", NOW + 1)]
    assert b"changed" not in secrets.of("ada")[0].sealed
    assert secrets.of("bob") == []
    with pytest.raises(Exception, match="bob has no secret"):
        secrets.values(asking(owner="bob"))
    secrets.remove("ada", "token")
    with pytest.raises(NotFoundError):
        secrets.remove("ada", "token")


def test_a_sealed_secret_cannot_be_opened_as_anothers_or_altered(store, secrets):
    secrets.set("ada", "token", "hush", NOW)
    (sealed,) = secrets.of("ada")
    store.secrets.put(replace(sealed, owner="bob"), MOST_OF_ONE)
    with pytest.raises(SettingsError, match="was altered"):
        secrets.values(asking(owner="bob"))
    store.secrets.put(replace(sealed, sealed=sealed.sealed[:-1] + bytes([sealed.sealed[-1] ^ 1])), MOST_OF_ONE)
    with pytest.raises(SettingsError, match="was altered"):
        secrets.values(asking())


def test_a_second_control_node_needs_the_first_ones_key(store, secrets, tmp_path):
    secrets.set("ada", "token", "hush", NOW)
    elsewhere = tmp_path / "other" / "secrets.key"
    second = Secrets(store.secrets, elsewhere)
    for action in (lambda: second.set("ada", "more", "x", NOW), lambda: second.values(asking())):
        with pytest.raises(SettingsError, match="copy it from the control node"):
            action()
    assert not elsewhere.exists()
    elsewhere.parent.mkdir()
    elsewhere.write_bytes((tmp_path / "secrets.key").read_bytes())
    assert second.values(asking()) == {"token": "hush"}
    assert make_key(elsewhere).id == secrets.of("ada")[0].key_id


def test_a_sealed_secret_does_not_show_what_it_holds():
    shown = repr(SealedSecret("ada", "token", b"sealed bytes", "k", NOW))
    assert "sealed bytes" not in shown


def test_a_renamed_session_keeps_its_state_and_its_reason(store):
    session = placed_on(make_session(1), "a1")
    store.add([session])
    store.snapshot(NOW)
    store.rename(session, "new", "ada", NOW)
    renamed = store.find("new")
    assert renamed == replace(session, name="new", spec=session.spec.model_copy(update={"name": "new"}))
    assert store.snapshot(NOW).sessions[0].name == "new"
    assert store.story(session.id)[-1].reason == "renamed from s1 to new by ada"
    store.rename(session, "new", "ada", NOW)
    assert len(store.story(session.id)) == 2
    with pytest.raises(NotFoundError):
        store.find("s1")


def test_a_name_that_is_taken_or_comes_too_late_is_refused(store):
    first, second, ended = make_session(1), make_session(2), make_session(3, state=S.TERMINATED)
    store.add([first, second, ended])
    with pytest.raises(NameTakenError):
        store.rename(first, "s2", "ada", NOW)
    store.rename(first, "s3", "ada", NOW)
    with pytest.raises(NotPossibleInStateError):
        store.rename(ended, "late", "ada", NOW)

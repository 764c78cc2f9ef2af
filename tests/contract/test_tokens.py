"""Tokens and idempotency keys in the database, and the numbered changes that listeners and metrics read."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from muster.core.lifecycle.transitions import transition
from muster.core.model.session import SessionState as S
from muster.core.model.token import Scope, Token
from muster.core.values.errors import BadInputError, NameTakenError, NotFoundError
from muster.service.identity.owned_tokens import MOST_OF_ONE, OwnedTokens
from muster.service.identity.tokens import PREFIX, NoTokenError, Tokens
from muster.store.database.connection import new_engine
from muster.store.sessions.submissions import KEPT_S, Submission, SubmittedBeforeError
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

LAPTOP = Token("laptop", "ada", Scope.USER, NOW, NOW + 60)
AT_ONCE = 8
ONCE = Submission("ada", "key-1", "a" * 64, NOW)


def test_of_many_that_are_made_at_once_no_more_are_kept_than_may_be(url, open_store):
    barrier = threading.Barrier(AT_ONCE)

    def make(number: int) -> None:
        owned = OwnedTokens(Tokens(open_store(url)), replace(LAPTOP, expires_at=None))
        barrier.wait()
        with suppress(BadInputError):
            owned.create(f"t{number}", None, Scope.READ, None)

    tokens = open_store(url).tokens
    for number in range(MOST_OF_ONE - 3):
        tokens.add(replace(LAPTOP, name=f"old{number}"), str(number))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(make, range(AT_ONCE)))
    assert len(tokens.all()) == MOST_OF_ONE


def test_nobody_signs_in_with_a_token_that_was_revoked_meanwhile(store):
    tokens = Tokens(store)
    token, _ = tokens.create("laptop", "ada", Scope.USER, None)
    tokens.revoke("laptop")
    with pytest.raises(NoTokenError, match="not known here any more"):
        tokens.sign_in(token)
    _, secret = tokens.create("laptop", "root", Scope.ADMIN, None)
    with pytest.raises(NoTokenError, match="not known here any more"):
        tokens.sign_in(token)
    assert tokens.sign_in(tokens.of_secret(secret))


def test_nobody_revokes_anothers_token_that_has_the_name_of_theirs_since(store, monkeypatch):
    tokens = Tokens(store)
    ada, _ = tokens.create("ada", "ada", Scope.USER, None)
    tokens.create("laptop", "ada", Scope.READ, None)
    listed = store.tokens.all()
    tokens.revoke("laptop")
    tokens.create("laptop", "bob", Scope.USER, None)
    with monkeypatch.context() as before:
        before.setattr(store.tokens, "all", lambda: listed)
        with pytest.raises(NotFoundError, match="there is no token 'laptop'"):
            OwnedTokens(tokens, ada).revoke("laptop")
    assert [token.user for token in store.tokens.all()] == ["ada", "bob"]


def test_a_sign_in_and_the_revocation_of_its_token_do_not_wait_for_each_other(server, postgresql_url, open_store):
    """Each has a row that the other is to remove or to keep: the token, and a sign-in of it that has expired."""
    store = open_store(postgresql_url)
    store.tokens.add(LAPTOP, "1" * 64)
    store.sign_ins.add("2" * 64, LAPTOP, NOW + 1, NOW)
    revoking = new_engine(postgresql_url)
    with ThreadPoolExecutor(1) as pool:
        with revoking.begin() as connection:
            connection.exec_driver_sql("SELECT name FROM tokens FOR UPDATE")
            signing_in = pool.submit(store.sign_ins.add, "3" * 64, LAPTOP, NOW + 90, NOW + 2)
            while not server.run("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                assert not signing_in.done()
            connection.exec_driver_sql("DELETE FROM tokens")
        with pytest.raises(NotFoundError, match="there is no token 'laptop' any more"):
            signing_in.result()
    revoking.dispose()


def test_a_token_is_found_by_its_hash_until_it_is_revoked(store):
    store.tokens.add(LAPTOP, "1" * 64)
    assert store.tokens.of_hash("1" * 64) == LAPTOP
    assert store.tokens.of_hash("2" * 64) is None
    assert store.tokens.all() == (LAPTOP,)
    with pytest.raises(NameTakenError, match="'laptop' already"):
        store.tokens.add(LAPTOP, "3" * 64)
    assert store.tokens.remove("laptop") == LAPTOP
    assert store.tokens.of_hash("1" * 64) is None
    with pytest.raises(NotFoundError, match="'laptop'; see `muster token ls`"):
        store.tokens.remove("laptop")


def test_a_renewed_token_keeps_its_age_and_its_sign_ins(store):
    assert store.tokens.renew(LAPTOP) is None
    store.tokens.add(LAPTOP, "1" * 64)
    store.sign_ins.add("2" * 64, LAPTOP, NOW + 50, NOW)
    later = replace(LAPTOP, scope=Scope.ADMIN, created_at=NOW + 30, expires_at=NOW + 90)
    assert store.tokens.renew(later) == replace(later, created_at=NOW) == store.tokens.of_hash("1" * 64)
    assert store.sign_ins.token_of("2" * 64, NOW + 40) == replace(later, created_at=NOW)


def test_one_that_had_expired_is_as_old_as_its_renewal(store):
    store.tokens.add(LAPTOP, "1" * 64)
    later = replace(LAPTOP, created_at=NOW + 60, expires_at=NOW + 120)
    assert store.tokens.renew(later) == later


def test_a_token_by_renewal_is_opened_by_no_secret(store):
    first = Tokens(store).renewed("oidc:ada", "ada", Scope.ADMIN, 3600)
    again = Tokens(store).renewed("oidc:ada", "ada", Scope.USER, 7200)
    assert store.tokens.all() == (again,)
    assert (again.scope, again.created_at) == (Scope.USER, first.created_at)
    assert Tokens(store).is_valid(again)
    assert not Tokens(store).is_valid(first)  # what began with an administrator's rights ends
    secret, lifetime_s = Tokens(store).sign_in(again, 60)
    assert Tokens(store).signed_in(secret).name == "oidc:ada"
    assert lifetime_s == 60
    with pytest.raises(NoTokenError):
        Tokens(store).of_secret(secret)


def test_a_token_keeps_its_projects(store):
    bound = replace(LAPTOP, projects=("vision", "teaching"))
    store.tokens.add(bound, "1" * 64)
    assert store.tokens.of_hash("1" * 64) == store.tokens.all()[0] == bound


def test_its_last_use_is_noted_once_a_minute(store):
    store.tokens.add(LAPTOP, "1" * 64)
    used = []
    for at in (NOW + 1, NOW + 30, NOW + 62):
        store.tokens.note_use(store.tokens.of_hash("1" * 64), at)
        used.append(store.tokens.of_hash("1" * 64).last_used_at)
    assert used == [NOW + 1, NOW + 1, NOW + 62]


def test_a_secret_opens_what_it_was_made_for_and_is_kept_nowhere(store):
    token, secret = Tokens(store).create("laptop", "ada", Scope.READ, "30d")
    assert secret.startswith(PREFIX)
    assert len(secret) > 40
    found = Tokens(store).of_secret(secret)
    assert (found.name, found.user, found.scope, found.expires_at) == ("laptop", "ada", Scope.READ, token.expires_at)
    assert secret not in repr(store.tokens.all())
    with pytest.raises(NoTokenError, match="not known here"):
        Tokens(store).of_secret(secret[:-1])
    store.tokens.remove("laptop")
    with pytest.raises(NoTokenError):
        Tokens(store).of_secret(secret)


def test_a_token_that_has_expired_opens_nothing(store):
    token, secret = Tokens(store).create("laptop", "ada", Scope.USER, "1h")
    store.tokens.remove("laptop")
    store.tokens.add(replace(token, expires_at=1.0), hashlib.sha256(secret.encode()).hexdigest())
    with pytest.raises(NoTokenError, match="expired at 1970-01-01"):
        Tokens(store).of_secret(secret)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("", "ada", Scope.USER, None), "NAME"),
        (("a b", "ada", Scope.USER, None), "NAME"),
        (("laptop", " ", Scope.USER, None), "--user"),
        (("laptop", "a\nb", Scope.USER, None), "--user"),
        (("laptop", "ada", Scope.USER, "soon"), "--expires"),
        (("laptop", "ada", Scope.USER, "0"), "--expires"),
        (("laptop", "ada", Scope.USER, "99999d"), "--expires"),
    ],
)
def test_a_token_that_cannot_be_is_refused_by_its_field(store, arguments, field):
    with pytest.raises(BadInputError, match=f"^{field}: "):
        Tokens(store).create(*arguments)
    assert store.tokens.all() == ()


def test_a_submission_is_done_once(store):
    first = make_session(1)
    store.add([first], ONCE)
    with pytest.raises(SubmittedBeforeError) as before:
        store.add([make_session(2)], ONCE)
    assert (before.value.session_ids, before.value.same) == ((first.id,), True)
    with pytest.raises(SubmittedBeforeError) as before:
        store.submissions.check(replace(ONCE, request_hash="b" * 64))
    assert not before.value.same
    assert [session.id for session in store.search()] == [first.id]
    store.add([make_session(3)], replace(ONCE, caller="eve"))
    store.add([make_session(4)], replace(ONCE, key="key-2"))


def test_a_submission_that_failed_was_not_done(store):
    session = make_session(1)
    store.add([session])
    with pytest.raises(NameTakenError):
        store.add([replace(make_session(2), name=session.name)], replace(ONCE, key="failed"))
    store.add([make_session(3)], replace(ONCE, key="failed"))


def test_a_key_is_forgotten_after_a_day(store):
    store.add([make_session(1)], replace(ONCE, key="daily"))
    later = replace(ONCE, key="daily", at=NOW + KEPT_S + 1)
    store.submissions.check(later)
    store.add([make_session(2)], later)


def test_a_reference_means_only_its_owners_sessions(store):
    hers, his = replace(make_session(1), owner="ada"), replace(make_session(2), owner="eve")
    store.add([hers, his])
    assert store.find(his.name, "eve").id == his.id
    assert store.find(his.name).id == his.id
    for reference in (his.name, his.id, his.id[:13]):
        with pytest.raises(NotFoundError):
            store.find_all(reference, "ada")


def test_changes_are_numbered_and_counted(store):
    store.add([make_session(1), make_session(2)])
    changes = store.changes.after(0, 10)
    mine = [change for change in changes if change.session_id in {make_session(1).id, make_session(2).id}]
    assert [change.to_state for change in mine] == ["PENDING", "PENDING"]
    assert store.changes.after(changes[0].id, 1) == changes[1:2]
    assert store.changes.after(changes[-1].id, 10) == []
    number, counts = store.changes.counted(0)
    assert number == changes[-1].id
    assert counts["PENDING"] == len(changes)
    assert store.changes.counted(number) == (number, {})


def test_a_launch_lasts_from_the_placing_that_led_to_it(store):
    session = make_session(1)
    store.add([session, make_session(2)])
    start = store.last_event()
    states = (S.SCHEDULED, S.PREPARING, S.PENDING, S.SCHEDULED, S.PREPARING, S.RUNNING)
    for at, state in enumerate(states):
        store.apply([transition(session, state, "on", NOW + 10 * at)])
        session = replace(session, state=state)
    end = store.last_event()
    assert store.changes.launch_durations(start, end) == [20.0]
    assert store.changes.launch_durations(start, end - 1) == []
    assert store.changes.launch_durations(end, end) == []


def test_amounts_are_added_to_counters(store):
    store.add_to_counters({"pass-us": 250, "pass-le-0.1": 1})
    store.add_to_counters({"pass-us": 50})
    assert store.counters(["pass-us", "pass-le-0.1", "never"]) == {"pass-us": 300, "pass-le-0.1": 1, "never": 0}


def test_a_browser_is_signed_in_until_it_signs_out_or_its_token_is_revoked(store):
    token, _ = Tokens(store).create("laptop", "ada", Scope.USER, "30d")
    first, lifetime_s = Tokens(store).sign_in(token)
    second, _ = Tokens(store).sign_in(token)
    assert lifetime_s == 7 * 86400
    assert Tokens(store).signed_in(first).user == Tokens(store).signed_in(second).user == "ada"
    Tokens(store).sign_out(first)
    with pytest.raises(NoTokenError, match="sign in again"):
        Tokens(store).signed_in(first)
    store.tokens.remove("laptop")
    Tokens(store).create("laptop", "eve", Scope.USER, None)
    with pytest.raises(NoTokenError):
        Tokens(store).signed_in(second)


def test_a_browser_is_signed_in_no_longer_than_its_token_lasts(store):
    token, _ = Tokens(store).create("brief", "ada", Scope.USER, "1h")
    secret, lifetime_s = Tokens(store).sign_in(token)
    assert 3590 < lifetime_s <= 3600
    store.sign_ins.add("old", token, 1.0, 0.0)
    assert store.sign_ins.token_of("old", 2.0) is None
    assert Tokens(store).signed_in(secret).name == "brief"

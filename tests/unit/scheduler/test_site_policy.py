"""What the site adds to a snapshot: its policy, and what its users have used, read from the store piece by piece."""

import shutil
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Result, Session, SessionState
from muster.core.usage.kernel import KernelUsage
from muster.service.scheduler.site_policy import SiteScheduling
from muster.settings import Settings
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

DAY = 86400.0
S = SessionState
FAIR = {"scheduling": {"order": "fair_share", "placement": "best"}, "usage_half_life_s": DAY}


@pytest.fixture
def settings(tmp_path) -> Settings:
    (tmp_path / "best.py").write_text(
        "from muster.scheduler_plugin import PlacementPolicy\nPOLICY = PlacementPolicy('best', left_over=1.0)\n"
    )
    return Settings.model_validate({**FAIR, "scheduler_plugins": tmp_path, "shares": {"bob": 2}})


@pytest.fixture
def make_store(empty_database, tmp_path):
    opened = []

    def make() -> Store:
        path = tmp_path / f"{len(opened)}.db"
        shutil.copy(empty_database, path)
        opened.append(Store(f"sqlite:///{path}"))
        opened[-1].agents.save([make_agent("a1", cpus=4, mem_bytes=64 << 30)])
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def ran(number: int, owner: str, begin_days: float, end_days: float) -> Session:
    """Return a session that ran with half of the cluster's cores."""
    session = placed_on(make_session(number, owner=owner, cpu=2, mem="1G", shm=0), "a1")
    times = {"started_at": NOW + begin_days * DAY, "ended_at": NOW + end_days * DAY}
    return replace(session, state=SessionState.TERMINATED, result=Result.SUCCESS, **times)


def usage(scheduling: SiteScheduling, store: Store, days: float = 0):
    return scheduling.complete(store.snapshot(NOW + days * DAY)).usage


def test_the_policy_is_the_sites(settings, make_store):
    store = make_store()
    policy = SiteScheduling(settings, store).complete(store.snapshot(NOW)).policy
    assert (policy.default.placement.name, policy.shares) == ("best", {"bob": 2.0})


def test_usage_is_read_only_where_an_order_needs_it(settings, make_store):
    store = make_store()
    store.add([ran(1, "ada", -1, 0)])
    fifo = settings.model_copy(update={"scheduling": settings.scheduling.model_copy(update={"order": "fifo"})})
    assert usage(SiteScheduling(fifo, store), store) == {}
    assert usage(SiteScheduling(settings, store), store) == {"ada": pytest.approx(0.25)}


def test_running_and_ended_sessions_count(settings, make_store):
    store = make_store()
    running = replace(placed_on(make_session(2, owner="bob", cpu=4), "a1"), started_at=NOW - DAY)
    store.add([ran(1, "ada", -2, -1), running])
    assert usage(SiteScheduling(settings, store), store) == {"ada": pytest.approx(0.125), "bob": pytest.approx(0.5)}


def began_again(store: Store, number: int, begin_days: float, end_days: float, again: bool) -> Session:
    """Add a session of ada's that has run with all cores; then it was queued again, or restarted and runs again."""
    session = placed_on(make_session(number, cpu=4, requeue=True), "a1")
    began, ended = NOW + begin_days * DAY, NOW + end_days * DAY
    runs = replace(session, generation=8, started_at=ended)
    waits = replace(session, generation=7, started_at=None, requeues=1, state=SessionState.PENDING)
    store.add([runs if again else waits])
    store.uses.save([KernelUsage(session.main.id, 7, session.id, began, ended, ended)])
    return session


@pytest.mark.parametrize("again", [True, False])
def test_what_a_session_used_before_it_was_queued_again_or_restarted_counts_further(settings, make_store, again):
    store = make_store()
    began_again(store, 1, -1, 0, again)
    assert usage(SiteScheduling(settings, store), store) == {"ada": pytest.approx(0.5)}
    assert usage(SiteScheduling(settings, store), store, 1)["ada"] == pytest.approx(0.75 if again else 0.25)


def test_a_run_counts_once_while_its_session_waits_runs_again_and_has_ended(settings, make_store):
    store = make_store()
    often = SiteScheduling(settings, store)
    session = replace(placed_on(make_session(1, cpu=4, requeue=True), "a1"), started_at=NOW - DAY)
    store.add([session])
    store.uses.save([KernelUsage(session.main.id, 7, session.id, NOW - DAY, NOW, NOW)])
    seen = []
    for from_state, to_state, changes in (
        (S.RUNNING, S.RUNNING, {}),
        (S.RUNNING, S.TERMINATING, {"requeue_after_end": True}),
        (S.TERMINATING, S.PENDING, {"started_at": None}),
        (S.PENDING, S.RUNNING, {"started_at": NOW, "generation": 8}),
        (S.RUNNING, S.TERMINATED, {"ended_at": NOW}),
    ):
        store.apply([Event(session.id, NOW, from_state, to_state, session=changes)])
        seen += [usage(often, store), usage(often, store), usage(SiteScheduling(settings, store), store)]
    assert seen == [{"ada": pytest.approx(0.5)}] * len(seen)
    assert usage(often, store, 1) == usage(often, store, 1) == {"ada": pytest.approx(0.25)}


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    runs=st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3), st.floats(0, 1)), max_size=5),
    passes=st.lists(st.floats(0, 4), max_size=4).map(sorted),
)
def test_passes_in_between_change_nothing_of_what_is_counted_in_the_end(settings, make_store, runs, passes):
    """Each session is written when it ends. Frequent reads and a single last read give the same."""
    store = make_store()
    ended = [ran(number, owner, end - length, end) for number, (owner, end, length) in enumerate(runs, 1)]
    often = SiteScheduling(settings, store)
    for days in [*passes, 5.0]:
        due = [session for session in ended if session.ended_at <= NOW + days * DAY]
        store.add(due)
        ended = [session for session in ended if session not in due]
        seen = usage(often, store, days)
    assert seen == pytest.approx(usage(SiteScheduling(settings, store), store, 5.0))

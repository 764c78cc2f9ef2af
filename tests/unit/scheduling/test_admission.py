"""Which sessions may be tried now, and the refusals of the others."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import AgentState
from muster.core.lifecycle import transitions
from muster.core.lifecycle.applied import applied_to
from muster.core.model.policy import Limit, Limits, SchedulingPolicy
from muster.core.model.reservation import Reservation
from muster.core.model.session import Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import LimitHit, LimitKind, WaitCode
from muster.core.scheduling.admission import Admission, moments
from muster.core.scheduling.limits import pending_refusal
from muster.core.values.units import format_moment
from tests.properties import examples
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState
G = 1 << 30


def snapshot_of(*sessions: Session, limits: Limits | None = None, **fields: Any) -> Snapshot:
    return Snapshot((), sessions, NOW, policy=SchedulingPolicy(limits=limits or Limits()), **fields)


def refusal(session: Session, *others: Session, limits: Limits | None = None, **fields: Any):
    return Admission(snapshot_of(session, *others, limits=limits, **fields)).refusal(session)


def test_a_session_that_asks_for_nothing_special_is_tried():
    assert refusal(make_session()) is None


def test_a_held_session_names_the_user_of_the_hold():
    wait = refusal(make_session(held_by="root", begin=NOW + 60))
    assert (wait.code, wait.message) == (WaitCode.HELD, "held by root")


def test_a_failed_launch_is_tried_again_at_its_time():
    wait = refusal(make_session(retry_at=NOW + 4.5, reason="no port"))
    assert (wait.code, wait.until) == (WaitCode.RETRY, NOW + 4.5)
    assert wait.message == f"the last launch failed (no port); it is tried again at {format_moment(NOW + 5)}"
    assert refusal(make_session(retry_at=NOW)) is None


def test_a_session_that_is_released_waits_no_more_for_the_delay_after_a_failed_launch():
    failed = make_session(retry_at=NOW + 4.5, reason="no port")
    held = applied_to(failed, transitions.hold(failed, "ada", NOW))
    assert refusal(applied_to(held, transitions.release(held, "ada", NOW))) is None


def test_a_session_does_not_start_before_its_begin():
    wait = refusal(make_session(begin=NOW + 60))
    assert (wait.code, wait.until) == (WaitCode.BEGIN, NOW + 60)
    assert wait.message == "does not start before 2025-11-21 11:21:00 UTC"
    assert refusal(make_session(begin=NOW)) is None


def other(state: SessionState, result: Result | None = None) -> Session:
    if state in {S.RUNNING, S.PREPARING, S.SCHEDULED, S.TERMINATING}:
        return replace(placed_on(make_session(7, name="prep"), "a1", state=state), result=result)
    return make_session(7, name="prep", state=state, result=result)


@pytest.mark.parametrize(
    ("state", "result", "waits"),
    [
        (S.PENDING, None, {"after", "after_ok", "after_any"}),
        (S.SCHEDULED, None, {"after", "after_ok", "after_any"}),
        (S.PREPARING, None, {"after", "after_ok", "after_any"}),
        (S.RUNNING, None, {"after_ok", "after_any"}),
        (S.TERMINATING, Result.SUCCESS, {"after_ok", "after_any"}),
        (S.TERMINATED, Result.SUCCESS, set()),
        (S.TERMINATED, Result.FAILURE, {"never"}),
        (S.ERROR, Result.FAILURE, {"never"}),
        (S.CANCELLED, None, {"never"}),
    ],
)
@pytest.mark.parametrize("kind", ["after", "after_ok", "after_any"])
@pytest.mark.parametrize("is_ended_read_apart", [False, True])
def test_a_dependency_is_met_as_its_kind_says(kind, state, result, waits, is_ended_read_apart):
    prep = other(state, result)
    is_final = state in {S.TERMINATED, S.ERROR, S.CANCELLED}
    session = make_session(1, **{kind: (prep.id,)})
    wait = refusal(session, ended={prep.id: prep}) if is_final and is_ended_read_apart else refusal(session, prep)
    if kind == "after_ok" and "never" in waits:
        how = "was cancelled" if state is S.CANCELLED else "failed"
        assert wait.code is WaitCode.NEVER_RUNS
        assert wait.message == f"it starts after prep succeeds, which {how}; update it without that"
    elif kind in waits:
        assert (wait.code, wait.waits_for) == (WaitCode.DEPENDENCY, (prep.id,))
    else:
        assert wait is None


def test_a_dependency_names_all_that_it_waits_for():
    one, two = make_session(2, name="one"), make_session(3, name="two")
    wait = refusal(make_session(after_ok=(one.id, two.id), after=(two.id,)), one, two)
    assert wait.message == "starts after two starts and one, two succeed"
    assert wait.waits_for == (two.id, one.id)


def test_a_dependency_that_nobody_knows_never_comes_true():
    wait = refusal(make_session(after_any=("11111111-0000-4000-8000-000000000000",)))
    assert wait.code is WaitCode.NEVER_RUNS
    assert "which does not exist" in wait.message


def array(count: int, most: int, *, placed: int = 0) -> list[Session]:
    sessions = [
        make_session(number, name=f"a-{number}", array=f"1-{count}%{most}", array_id="x", array_index=number)
        for number in range(1, count + 1)
    ]
    return [placed_on(session, "a1") if n < placed else session for n, session in enumerate(sessions)]


def test_no_more_sessions_of_an_array_are_admitted_than_its_limit():
    sessions = array(5, 3, placed=1)
    admission = Admission(snapshot_of(*sessions))
    refused = []
    for session in sessions[1:]:
        wait = admission.refusal(session)
        if wait is None:
            admission.admit(session)
        else:
            refused.append(wait)
    assert [wait.code for wait in refused] == [WaitCode.ARRAY, WaitCode.ARRAY]
    assert refused[0].limit == LimitHit(LimitKind.ARRAY, "", "sessions", 3, 3, 1)
    assert refused[0] is refused[1]


GPUS = Limits(users={"*": Limit(running={"gpu": 8}), "bob": Limit(running={"gpu": 2})})


def test_a_limit_says_what_it_is_and_what_is_used():
    running = placed_on(make_session(2, gpu=6), "a1")
    wait = refusal(make_session(1, gpu=2, cluster_size=2), running, limits=GPUS)
    assert wait.code is WaitCode.LIMIT
    assert wait.message == "user ada may run 8 GPU at a time, uses 6 GPU, and this asks for 4 GPU more"
    assert wait.limit == LimitHit(LimitKind.USER, "ada", "gpu", 8, 6, 4)
    assert refusal(make_session(1, gpu=2), running, limits=GPUS) is None


def test_a_named_user_has_an_own_limit_and_each_other_user_the_common_one():
    running = placed_on(make_session(2, gpu=2), "a1")
    assert refusal(make_session(1, gpu=1, owner="bob"), running, limits=GPUS) is None
    bobs = replace(running, owner="bob")
    assert refusal(make_session(1, gpu=1, owner="bob"), bobs, limits=GPUS).limit.value == 2
    assert refusal(make_session(1, gpu=8, owner="eve"), running, bobs, limits=GPUS) is None


def test_a_session_above_its_owners_limit_never_runs():
    wait = refusal(make_session(1, mem="3G", cpu=1), limits=Limits(projects={"default": Limit(running={"mem": 2 * G})}))
    assert wait.code is WaitCode.NEVER_RUNS
    assert wait.message == "it asks for 3 GiB memory, more than project default may ever run: 2 GiB memory"


def test_a_users_limit_holds_across_resource_groups():
    here, there = make_session(1), make_session(2, resource_group="gpu")
    admission = Admission(snapshot_of(here, there, limits=Limits(users={"ada": Limit(running={"sessions": 1})})))
    assert admission.refusal(here) is None
    admission.admit(here)
    assert (
        admission.refusal(there).message
        == "user ada may run 1 session at a time, uses 1 session, and this asks for 1 session more"
    )


def test_a_session_that_requests_none_of_a_limited_slot_is_not_held_up():
    running = placed_on(make_session(2, gpu=9), "a1")
    assert refusal(make_session(1), running, limits=GPUS) is None


COUNTS = {"sessions": lambda _: 1, "kernels": lambda s: len(s.kernels)} | {
    name: lambda s, name=name: getattr(s.slots, name) for name in ("cpu", "mem", "fgpu", "gpu")
}
SCOPES = {
    "users": lambda s: s.owner,
    "projects": lambda s: s.spec.project,
    "resource_groups": lambda s: s.spec.resource_group,
}


@st.composite
def limit_of(draw: st.DrawFn) -> Limit:
    bounds = {
        "sessions": st.integers(0, 3),
        "kernels": st.integers(0, 5),
        "cpu": st.integers(0, 6).map(lambda cores: cores * 1000),
        "mem": st.integers(0, 6).map(lambda size: size * G),
        "gpu": st.integers(0, 4),
        "fgpu": st.integers(0, 4).map(lambda units: units * 500),
    }
    return Limit(draw(st.fixed_dictionaries({}, optional=bounds)), draw(st.fixed_dictionaries({}, optional=bounds)))


def limits() -> st.SearchStrategy[Limits]:
    def by(*names: str) -> st.SearchStrategy[dict[str, Limit]]:
        return st.dictionaries(st.sampled_from(("*", *names)), limit_of(), max_size=2)

    return st.builds(Limits, by("ada", "bob"), by("x"), by("default", "gpu"))


@st.composite
def sessions(draw: st.DrawFn, number: int) -> Session:
    kind = draw(st.sampled_from(("none", "gpu", "fgpu")))
    session = make_session(
        number,
        owner=draw(st.sampled_from(("ada", "bob", "eve"))),
        project=draw(st.sampled_from(("x", "y"))),
        resource_group=draw(st.sampled_from(("default", "gpu"))),
        cluster_size=draw(st.integers(1, 2)),
        cpu=draw(st.integers(1, 3)),
        mem="1G",
        shm=0,
        gpu=draw(st.integers(1, 2)) if kind == "gpu" else 0,
        fgpu=draw(st.sampled_from((0.5, 1))) if kind == "fgpu" else 0,
    )
    return placed_on(session, "a1") if draw(st.integers(0, 3)) == 0 else session


@st.composite
def queues(draw: st.DrawFn) -> list[Session]:
    return [draw(sessions(number)) for number in range(1, draw(st.integers(0, 8)) + 1)]


def over(limits: Limits, sessions: list[Session], kind: str) -> set[tuple[str, str, str]]:
    """Return kind of scope, name and measure of each limit that the sessions exceed, counted anew, the slow way."""
    found = set()
    for scopes, of in SCOPES.items():
        named = getattr(limits, scopes)
        for name in {of(session) for session in sessions}:
            limit = named.get(name, named.get("*"))
            for counted, bound in (getattr(limit, kind) if limit else {}).items():
                if sum(COUNTS[counted](session) for session in sessions if of(session) == name) > bound:
                    found.add((scopes, name, counted))
    return found


@examples(60)
@given(limits(), queues(), st.data())
def test_limits_are_kept_in_any_order_and_what_is_refused_would_break_one(limits, queue, data):
    placed = [session for session in queue if session.state is S.RUNNING]
    admission = Admission(snapshot_of(*queue, limits=limits))
    was_over = over(limits, placed, "running")
    for session in data.draw(st.permutations([session for session in queue if session.state is S.PENDING])):
        wait = admission.refusal(session)
        broken = over(limits, [*placed, session], "running")
        scopes = {(scope, of(session)) for scope, of in SCOPES.items()}
        broken = {hit for hit in broken if hit[:2] in scopes and COUNTS[hit[2]](session)}
        if wait is None:
            assert not broken
            admission.admit(session)
            placed.append(session)
            continue
        hit = wait.limit
        assert (f"{hit.kind.replace(' ', '_')}s", hit.who, hit.counted) in broken
        assert hit.requested == COUNTS[hit.counted](session)
        assert (wait.code is WaitCode.NEVER_RUNS) == bool(over(limits, [session], "running"))
    assert over(limits, placed, "running") - was_over == set()


@examples(60)
@given(limits(), queues(), queues())
def test_new_sessions_are_refused_exactly_where_they_break_a_limit_of_what_may_wait(limits, queue, new):
    new = [replace(session, state=S.PENDING) for session in new]
    pending = [session for session in queue if session.state is S.PENDING]
    scopes = {(scope, of(session)) for scope, of in SCOPES.items() for session in new}
    broken = {
        (scope, name, counted)
        for scope, name, counted in over(limits, [*pending, *new], "pending")
        if (scope, name) in scopes
        and any(COUNTS[counted](session) for session in new if SCOPES[scope](session) == name)
    }
    assert (pending_refusal(limits, pending, new) is not None) == bool(broken)


@examples(60)
@given(limits(), queues(), st.data())
def test_an_update_is_refused_exactly_where_it_asks_for_more_than_before_and_breaks_a_limit(limits, queue, data):
    pending = [session for session in queue if session.state is S.PENDING]
    replaced = data.draw(st.lists(st.sampled_from(pending), max_size=3, unique_by=id) if pending else st.just([]))
    others = [session for session in pending if all(session is not one for one in replaced)]
    new = [
        replace(data.draw(sessions(100 + place)), owner=session.owner, state=S.PENDING)
        for place, session in enumerate(replaced)
    ]

    def asked(sessions, scope, name, counted):
        return sum(COUNTS[counted](session) for session in sessions if SCOPES[scope](session) == name)

    broken = {hit for hit in over(limits, [*others, *new], "pending") if asked(new, *hit) > asked(replaced, *hit)}
    assert (pending_refusal(limits, others, new, replaced) is not None) == bool(broken)


def test_a_refused_submit_names_the_limit_its_value_and_its_use():
    limits = Limits(users={"*": Limit(pending={"sessions": 2})})
    pending = [make_session(1)]
    assert pending_refusal(limits, pending, [make_session(3)]) is None
    assert pending_refusal(limits, pending, [make_session(3), make_session(4)]) == (
        "user ada may have 2 sessions waiting, has 1 session, and this asks for 2 sessions more;"
        " wait until some have started, or end some"
    )


def test_sessions_that_wait_for_the_same_reason_share_it():
    held = [make_session(number, held_by="ada") for number in (1, 2)]
    later = [make_session(number, begin=NOW + 9) for number in (3, 4)]
    over_limit = [make_session(number, gpu=1, owner="bob") for number in (5, 6)]
    first = make_session(9)
    behind = [make_session(number, after_any=(first.id,)) for number in (7, 8)]
    full = placed_on(make_session(10, gpu=2, owner="bob"), "a1")
    admission = Admission(snapshot_of(*held, *later, *over_limit, *behind, first, full, limits=GPUS))
    for one, two in (held, later, over_limit, behind):
        assert admission.refusal(one) is admission.refusal(two) is not None


def test_the_moments_are_those_at_which_the_clock_alone_changes_what_may_start():
    away = replace(make_agent("a1"), state=AgentState.LOST, unreachable_since=NOW - 100)
    windows = (Reservation("w", NOW - 60, NOW + 60), Reservation("v", NOW + 90, NOW + 120))
    pending = (make_session(1, retry_at=NOW + 5), make_session(2, begin=NOW + 7), make_session(3, begin=NOW))
    snapshot = Snapshot((away,), pending, NOW, reservations=windows)
    assert sorted(at - NOW for at in moments(snapshot)) == [5, 7, 60, 90, 120]
    stranded = replace(snapshot, sessions=(*pending, make_session(4, stranded_on=("a1", "a2"))))
    assert sorted(at - NOW for at in moments(stranded)) == [5, 7, 60, 90, 120, 500]


def test_limits_of_what_waits_bound_no_session_that_may_start():
    of_waiting = Limit(pending={"sessions": 2})
    assert not Admission(snapshot_of(make_session(1), limits=Limits(users={"*": of_waiting}))).is_bounded
    of_both = Limit(pending={"sessions": 2}, running={"gpu": 8})
    for limits in (
        Limits(users={"ada": of_both}),
        Limits(projects={"*": of_both}),
        Limits(resource_groups={"*": of_both}),
    ):
        assert Admission(snapshot_of(make_session(1), limits=limits)).is_bounded

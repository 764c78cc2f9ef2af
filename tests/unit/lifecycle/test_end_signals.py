"""The signal before a session's end: every end that we cause waits for it and its time, and no longer."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import Agent
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.lifecycle import transitions
from muster.core.lifecycle.adoption import Adoption
from muster.core.lifecycle.applied import applied, applied_to
from muster.core.lifecycle.end_signals import limit_at
from muster.core.lifecycle.idle import IdleRules, ends
from muster.core.lifecycle.observation import observe
from muster.core.model.plan import Plan, Preemption, Waits
from muster.core.model.session import Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.preemption import victims
from muster.core.turn.answer import AgentAnswer
from muster.core.turn.conclusions import conclude
from muster.core.turn.interpretation import interpret
from muster.core.turn.late_signals import with_late_signals
from muster.core.turn.ledger import Ledger
from muster.core.turn.open_visits import OpenVisits
from muster.core.turn.touch import unsent
from muster.core.turn.turn import turn
from muster.core.usage.kernel import KernelUsage
from tests.properties import cheap
from tests.reports import kernel_entry, reports_of
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW
from tests.turn_strategies import RULES

S = SessionState
LEAD_S = 120
HEAD = make_session(9, priority=90)


def running(signal: str | None = f"USR1@{LEAD_S}", **values: Any) -> Session:
    session = make_session(1, command="train", signal=signal, **values)
    return replace(placed_on(session, "a1"), started_at=NOW)


def snapshot_of(session: Session, now: float) -> Snapshot:
    return Snapshot((replace(make_agent("a1"), observed_at=now),), (session, HEAD), now)


def asking(session: Session, *, asks: bool = True) -> Plan:
    return Plan((), Waits(()), (Preemption(session.id, HEAD.id, "preempted for s9"),) if asks else ())


def after(session: Session, now: float, *, asks: bool = False) -> Session:
    """Return the session after a turn at that time; `asks`: the plan wants its place."""
    snapshot = snapshot_of(session, now)
    events, _ = conclude(snapshot, Ledger(), RULES)
    snapshot = applied(snapshot, events)
    snapshot = applied(snapshot, transitions.preempt(asking(session, asks=asks), snapshot))
    return next(one for one in snapshot.sessions if one.id == session.id)


# The time limit


def test_the_signal_comes_its_time_before_the_limit_and_once():
    session = running(time_limit="600s")
    assert after(session, NOW + 479).signals == 0
    sent = after(session, NOW + 480)
    assert (sent.state, sent.signals, sent.signalled_at) == (S.RUNNING, 1, NOW + 480)
    assert sent.reason == "USR1 goes to its command before its time limit is reached"
    assert after(sent, NOW + 599) == sent
    ended = after(sent, NOW + 600)
    assert (ended.state, ended.reason) == (S.TERMINATING, "its time limit of 10m is reached")


def test_a_limit_that_passed_while_nobody_worked_the_queue_waits_for_a_late_signal():
    sent = after(running(time_limit="600s"), NOW + 5000)
    assert (sent.state, sent.signals) == (S.RUNNING, 1)
    assert limit_at(sent) == NOW + 5000 + LEAD_S
    assert after(sent, NOW + 5119).state is S.RUNNING
    assert after(sent, NOW + 5120).state is S.TERMINATING


def test_after_an_extension_another_signal_comes_before_the_new_end():
    sent = after(running(time_limit="600s"), NOW + 480)
    extended = applied_to(sent, transitions.extend(sent, 300, "ada", NOW + 500))
    assert after(extended, NOW + 779).signals == 1
    again = after(extended, NOW + 780)
    assert (again.state, again.signals) == (S.RUNNING, 2)
    assert after(again, NOW + 900).state is S.TERMINATING


def test_a_site_limit_that_is_shorter_than_the_signals_time_is_kept():
    session = replace(running(), spec=running().spec.model_copy(update={"time_limit": 60}))
    sent = after(session, NOW + 1)
    assert (sent.signals, sent.state) == (1, S.RUNNING)
    assert after(sent, NOW + 61).state is S.TERMINATING


# Idle sessions


def idle_verdict(session: Session, idle_s: float, now: float) -> transitions.Event | None:
    rules = IdleRules(timeout_s=3600, warn_before_s=600)
    use = KernelUsage(
        kernel_id=session.main.id,
        session_id=session.id,
        generation=1,
        began_at=NOW,
        seen_at=now,
        at=now,
        idle_since=now - idle_s,
        cpu_cores=0.0,
        net_bytes_per_s=0.0,
    )
    return ends(session, {session.main.id: use}, rules, now)


def test_an_idle_session_is_warned_sent_the_signal_and_ended():
    session = running()
    warning = idle_verdict(session, 3000, NOW + 3000)
    warned = applied_to(session, warning)
    assert idle_verdict(warned, 3479, NOW + 3479) is None
    sent = applied_to(warned, idle_verdict(warned, 3480, NOW + 3480))
    assert (sent.signals, sent.warned_at) == (1, NOW + 3000)
    assert idle_verdict(sent, 3599, NOW + 3599) is None
    assert idle_verdict(sent, 3600, NOW + 3600).to_state is S.TERMINATING


def test_an_idle_session_whose_signal_is_late_keeps_its_time():
    warned = replace(running(), warned_at=NOW + 3000, signals=1, signalled_at=NOW + 100)
    sent = applied_to(warned, idle_verdict(warned, 5000, NOW + 5000))
    assert (sent.signals, sent.signalled_at) == (2, NOW + 5000)
    assert idle_verdict(sent, 5119, NOW + 5119) is None
    assert idle_verdict(sent, 5120, NOW + 5120).to_state is S.TERMINATING


# Its place is taken


def test_a_preempted_session_leaves_once_its_signals_time_is_over():
    sent = after(running(requeue=True), NOW + 10, asks=True)
    assert (sent.state, sent.signals, sent.leaves_at) == (S.RUNNING, 1, NOW + 10 + LEAD_S)
    assert sent.reason == "USR1 goes to its command before its place is taken: preempted for s9"
    assert after(sent, NOW + 129, asks=True) == sent
    gone = after(sent, NOW + 130, asks=True)
    assert (gone.state, gone.requeue_after_end) == (S.TERMINATING, True)


def test_a_session_whose_place_is_not_asked_for_any_more_goes_on_and_is_sent_another_signal_next_time():
    sent = after(running(), NOW + 10, asks=True)
    stays = after(sent, NOW + 60)
    assert (stays.state, stays.leaves_at) == (S.RUNNING, None)
    assert after(stays, NOW + 500, asks=True).signals == 2


def test_extending_does_not_delay_a_preemption():
    sent = after(running(time_limit="2h"), NOW + 10, asks=True)
    extended = applied_to(sent, transitions.extend(sent, 60, "ada", NOW + 100))
    assert after(extended, NOW + 130, asks=True).state is S.TERMINATING


def test_a_signal_whose_time_runs_is_one_for_each_end_and_puts_none_off():
    sent = after(running(time_limit="600s"), NOW + 480)
    signalled = after(sent, NOW + 500, asks=True)
    assert (signalled.signals, signalled.signalled_at, signalled.leaves_at) == (1, NOW + 480, NOW + 600)
    assert signalled.reason == "its command, which got USR1, has time left before its place is taken: preempted for s9"
    assert after(signalled, NOW + 599, asks=True) == signalled
    assert after(signalled, NOW + 600, asks=True).state is S.TERMINATING


def test_a_session_without_a_signal_and_one_that_its_user_ends_do_not_wait():
    assert after(running(None), NOW + 10, asks=True).state is S.TERMINATING
    assert transitions.end_by_user(running(), "ada", NOW).to_state is S.TERMINATING


def test_those_that_were_sent_the_signal_are_chosen_again():
    sessions = [replace(placed_on(make_session(n, preemptible=True, priority=1), "a1"), started_at=NOW) for n in (1, 2)]
    sent = replace(sessions[1], leaves_at=NOW + 100, started_at=NOW - 5000)

    class Fits:
        """A place with room for the gang once a session left it."""

        def __init__(self, left: int = 0) -> None:
            self._left = left

        def copy(self):
            return Fits(self._left)

        def release(self, kernels):
            self._left += len(list(kernels))

        def take(self, kernels):
            self._left -= len(list(kernels))

        def fits(self, _gang, _closed):
            return self._left >= 1

    chosen = victims(HEAD, None, frozenset(), Fits(), [sessions[0], sent], make_agent("a1").capacity, NOW)
    assert [session.id for session in chosen] == [sent.id]


def test_a_drained_agents_session_ends_after_its_signal_and_one_without_at_once():
    session = running()
    event = transitions.end_by_drain(session, "root", NOW + 10)
    assert event.reason == "USR1 goes to its command before it is ended by root"
    sent = applied_to(session, event)
    assert transitions.end_by_drain(sent, "root", NOW + 11) is None
    assert after(sent, NOW + 129) == sent
    ended = after(sent, NOW + 130)
    assert (ended.state, ended.reason, ended.result) == (S.TERMINATING, "ended by root", Result.FAILURE)
    assert transitions.end_by_drain(running(None), "root", NOW).to_state is S.TERMINATING


def test_a_drain_ends_a_session_that_a_decision_of_before_lets_go_on():
    leaving = after(running(), NOW + 10, asks=True)
    snapshot = snapshot_of(leaving, NOW + 60)
    goes_on = transitions.preempt(asking(leaving, asks=False), snapshot)
    drained = applied_to(leaving, transitions.end_by_drain(leaving, "root", NOW + 60))
    (session, _) = applied(snapshot_of(drained, NOW + 60), goes_on).sessions
    assert after(session, NOW + 130).reason == "ended by root"


@cheap
@given(
    signal_s=st.integers(1, 300),
    limit=st.none() | st.integers(300, 2000),
    steps=st.lists(st.tuples(st.integers(1, 400), st.booleans(), st.integers(0, 9)), max_size=25),
)
def test_no_end_comes_before_a_signal_and_its_time_and_none_waits_longer(signal_s, limit, steps):
    session = running(f"TERM@{signal_s}", **({"time_limit": f"{limit}s"} if limit else {}))
    now, sent_at, asked_since = NOW, [], None
    for seconds, asks, luck in steps:
        now += seconds
        if luck == 0 and session.time_limit:
            session = applied_to(session, transitions.extend(session, 100, "ada", now))
        asked_since = (asked_since or now) if asks else None
        before, session = session, after(session, now, asks=asks)
        sent_at += [now] if session.signals > before.signals else []
        if session.state is not S.RUNNING:
            assert any(at + signal_s <= now for at in sent_at)
            return
        if before.leaves_at is not None and now >= before.leaves_at:
            assert not asks
        if asked_since is not None:
            assert session.leaves_at is not None
            assert session.leaves_at <= asked_since + signal_s
        if session.time_limit and now >= NOW + session.time_limit:
            assert now - session.signalled_at < signal_s


# On its way


def test_a_new_launch_knows_of_no_signals():
    old = replace(running(), signals=3, signalled_at=NOW, leaves_at=NOW, ends_for="ended by root")
    again = applied_to(replace(old, state=S.PREPARING), transitions.all_run(replace(old, state=S.PREPARING), {}, NOW))
    assert (again.signals, again.signalled_at, again.leaves_at, again.ends_for) == (0, None, None, None)


def signal_for(agent: Agent, session: Session) -> dict[str, Any] | None:
    """Return the signal in the session's entry of the agent's manifest."""
    written = manifest(agent, [session], {}, 7, LaunchPolicy(), lambda name, _: name)
    return json.loads(written.model_dump_json())["sessions"][0]["signal"]


@pytest.mark.parametrize(("on", "names"), [("main", ["main1"]), ("all", ["main1", "sub1"])])
def test_the_manifest_names_the_kernels_whose_command_gets_it(on, names):
    session = replace(running(cluster_size=2, run_on=on), signals=2)
    agent = reporting(make_agent("a1"), kernels=[kernel_entry(session, k.name, signals=1) for k in session.kernels])
    assert signal_for(agent, session) == {"signal": 10, "count": 2, "kernels": names}
    wanted = {f"signal 2 of {kernel.id}" for kernel in session.kernels if kernel.name in names}
    assert unsent(agent, Snapshot((agent,), (session,), NOW)) == wanted
    assert signal_for(agent, replace(session, state=S.TERMINATING)) is None


@pytest.mark.parametrize(
    ("receivers", "reason"),
    [
        (1, "USR1 was sent to main1's command"),
        (0, "no program of main1's command handles USR1, so none got it"),
    ],
)
def test_the_story_says_what_came_of_it(receivers, reason):
    session = replace(running(), signals=1)
    facts = {"signals": 1, "signal_receivers": receivers}
    reports = reports_of(session, main1=facts)
    (event,) = observe(snapshot_of(session, NOW + 1), reports)
    assert event.reason == reason
    assert observe(snapshot_of(applied_to(session, event), NOW + 2), reports) == []


# Late


LIMITED = running(time_limit="600s")
WAITS = replace(LIMITED, signals=1, signalled_at=NOW + 480, reason="sent")
"""A session whose signal was decided on 120 s before its end, and whose command has not got it."""
ON_ITS_WAY = f"signal 1 of {WAITS.main.id}"


def agent_of(session: Session, signals: int = 0) -> Agent:
    return reporting(make_agent("a1"), kernels=[kernel_entry(session, "main1", signals=signals)])


def concluded(session: Session, now: float, ledger: Ledger | None = None, agent: Agent | None = None) -> Session:
    agent = replace(agent or agent_of(session), observed_at=now)
    snapshot = Snapshot((agent,), (session, HEAD), now)
    events, _ = conclude(snapshot, ledger or Ledger(), RULES)
    snapshot = applied(snapshot, events)
    return next(one for one in snapshot.sessions if one.id == session.id)


def test_an_end_waits_for_a_signal_that_is_still_on_its_way():
    """A launch of another session takes long on the agent, or nobody worked the queue."""
    for now in (NOW + 600, NOW + 5000):
        assert concluded(WAITS, now).state is S.RUNNING
    in_flight = Ledger(visits=OpenVisits().opened({"a1"}, NOW + 500), leftovers_tried={"a1": frozenset({ON_ITS_WAY})})
    assert concluded(WAITS, NOW + 600, in_flight).state is S.RUNNING


def test_an_end_waits_for_a_signal_that_came_up_before_all_agents_were_heard_after_a_restore():
    """Until then no visit sends anything."""
    agent = replace(agent_of(WAITS), observed_at=NOW + 600)
    heard = Ledger(adoption=Adoption(holds=True, visit=1, heard=frozenset({"a1"})))
    ended = turn(Snapshot((agent,), (WAITS,), NOW + 600), heard, lambda _snapshot: None, RULES)
    assert ended.ledger.adoption is None
    assert [session.state for session in ended.snapshot.sessions] == [S.RUNNING]


def test_an_end_waits_for_no_signal_that_an_agent_cannot_send():
    tried = Ledger(leftovers_tried={"a1": frozenset({ON_ITS_WAY})})
    assert concluded(WAITS, NOW + 600, tried).state is S.TERMINATING
    away = agent_of(WAITS).unanswered("it hangs", NOW + 500)
    assert concluded(WAITS, NOW + 600, agent=away).state is S.TERMINATING


def test_an_end_waits_for_no_other_sessions_signal():
    neighbour = placed_on(make_session(5, command="train", signal="USR1@60"), "a1")
    waits = replace(neighbour, signals=1, signalled_at=NOW + 500)
    sent = replace(LIMITED, signals=1, signalled_at=NOW + 480)
    entries = [kernel_entry(sent, "main1", signals=1), kernel_entry(waits, "main1", signals=0)]
    agent = replace(reporting(make_agent("a1"), kernels=entries), observed_at=NOW + 600)
    snapshot = Snapshot((agent,), (sent, waits), NOW + 600)
    events, _ = conclude(snapshot, Ledger(), RULES)
    assert [(event.session_id, event.to_state) for event in events] == [(sent.id, S.TERMINATING)]


def answered(session: Session, now: float, *, signals: int = 1, before: Agent | None = None) -> Session:
    """Return the session after a visit to its agent, by which its command has been sent so many signals."""
    ledger = Ledger(visits=OpenVisits().opened({"a1"}, NOW + 481))
    report = agent_of(session, signals=signals).report
    answer = AgentAnswer("a1", report=report, inventory=make_agent("a1").inventory, visit=1)
    snapshot = Snapshot((before or agent_of(session),), (session,), now)
    (after,) = applied(snapshot, interpret(snapshot, ledger, [answer], RULES).events).sessions
    return after


def test_the_time_of_a_signal_that_came_late_begins_when_it_came():
    late = answered(WAITS, NOW + 700)
    assert (late.state, late.signalled_at, late.main.signals) == (S.RUNNING, NOW + 700, 1)
    agent = agent_of(late, signals=1)
    assert concluded(late, NOW + 819, agent=agent).state is S.RUNNING
    assert concluded(late, NOW + 820, agent=agent).state is S.TERMINATING


def test_a_signal_that_came_soon_puts_no_end_off():
    sent = answered(WAITS, NOW + 484)
    assert (sent.signalled_at, sent.main.signals) == (NOW + 480, 1)
    assert concluded(sent, NOW + 600, agent=agent_of(sent, signals=1)).state is S.TERMINATING


def test_a_place_that_is_needed_is_left_after_the_time_of_a_late_signal():
    session = replace(running(requeue=True), signals=1, signalled_at=NOW + 10, leaves_at=NOW + 10 + LEAD_S)
    snapshot = with_late_signals(Snapshot((agent_of(session),), (session, HEAD), NOW + 400), Ledger())
    assert transitions.preempt(asking(session), snapshot) == []
    late = answered(session, NOW + 400)
    assert (late.signalled_at, late.leaves_at) == (NOW + 400, NOW + 400 + LEAD_S)
    agent = agent_of(late, signals=1)
    assert transitions.preempt(asking(late), Snapshot((agent,), (late, HEAD), NOW + 519)) == []
    (gone,) = transitions.preempt(asking(late), Snapshot((agent,), (late, HEAD), NOW + 520))
    assert gone.to_state is S.TERMINATING


@pytest.mark.parametrize(
    "session",
    [WAITS, replace(running(), signals=2, signalled_at=NOW + 699, leaves_at=NOW + 600, ends_for="drain")],
    ids=["limit", "drain, and another signal since"],
)
def test_a_session_whose_agent_answers_again_is_sent_its_signal_before_it_ends(session):
    away = agent_of(session).unanswered("it hangs", NOW + 490)
    later = answered(session, NOW + 700, signals=0, before=away)
    assert (later.state, later.main.signals) == (S.RUNNING, 0)
    agent = replace(agent_of(session), observed_at=NOW + 700)
    assert concluded(later, NOW + 700, agent=agent).state is S.RUNNING

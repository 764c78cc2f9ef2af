"""When a session is idle, who is warned, and when it ends."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contract.report import UseSample
from muster.core.lifecycle.idle import IdleRules, ends, idle_for, judged
from muster.core.lifecycle.launch_usage import LaunchUsage
from muster.core.model.session import GpuShare, Result, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.touch import undelivered
from muster.core.usage.kernel import KernelUsage, first_usage, next_usage
from tests.properties import cheap
from tests.reports import kernel_entry
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

RULES = IdleRules(timeout_s=3600, grace_s=0, warn_before_s=600, gap_s=90)


def sample(at, cpu=0.0, net=0, **values):
    zero = {"mem_bytes": 1, "mem_peak_bytes": 1, "gpu_percent": None}
    return UseSample(**{"at": at, "cpu_seconds": cpu, "net_rx_bytes": net, "net_tx_bytes": 0, **zero, **values})


def running(**values):
    return replace(placed_on(make_session(1, **values), "a1"), started_at=NOW)


def seen(session, samples, rules=RULES):
    """Return the usage of main1 after these observations. The agent's clock is ahead."""
    first, *rest = samples
    kernel = session.main
    use = first_usage(kernel.id, 1, session.id, NOW, first, first.at)
    for one in rest:
        use = judged(use, next_usage(use, one, one.at), kernel, rules)
    return use


def idle_samples(seconds, step=30):
    return [sample(NOW + at) for at in range(0, seconds + 1, step)]


def verdict(session, samples, rules=RULES, now=None):
    use = seen(session, samples, rules)
    return ends(session, {session.main.id: use}, rules, samples[-1].at if now is None else now)


def test_idle_time_is_what_lies_between_observations_that_saw_no_use():
    session = running()
    assert idle_for(session, {session.main.id: seen(session, idle_samples(600))}) == 600


@pytest.mark.parametrize("used", [{"cpu": 30.0}, {"net": 1 << 20}])
def test_any_use_begins_the_count_anew(used):
    session = running()
    samples = [*idle_samples(300), sample(NOW + 330, **used), sample(NOW + 360, **used)]
    assert idle_for(session, {session.main.id: seen(session, samples[:-1])}) is None
    assert idle_for(session, {session.main.id: seen(session, samples)}) == 30


@pytest.mark.parametrize("unknown", ["cpu_seconds", "net_rx_bytes"])
def test_what_is_not_known_counts_as_in_use(unknown):
    session = running()
    samples = [sample(NOW + at, **{unknown: None}) for at in range(0, 301, 30)]
    assert idle_for(session, {session.main.id: seen(session, samples)}) is None


def test_time_in_which_nobody_looked_does_not_count():
    session = running()
    samples = [*idle_samples(300), sample(NOW + 5000), sample(NOW + 5030)]
    assert idle_for(session, {session.main.id: seen(session, samples)}) == 30


def test_idle_time_does_not_grow_while_the_agent_is_away():
    session = running()
    assert verdict(session, idle_samples(2700), now=NOW + 100000) is None


def test_in_the_grace_after_the_start_nothing_counts():
    session, rules = running(), replace(RULES, grace_s=100)
    assert idle_for(session, {session.main.id: seen(session, idle_samples(90), rules)}) is None
    assert idle_for(session, {session.main.id: seen(session, idle_samples(300), rules)}) == 200


def test_one_kernel_in_use_keeps_the_session():
    session = running(cluster_size=2)
    uses = {kernel.id: seen(session, idle_samples(3600)) for kernel in session.kernels}
    assert idle_for(session, uses) == 3600
    uses[session.kernels[1].id] = replace(uses[session.kernels[1].id], idle_since=None)
    assert idle_for(session, uses) is None
    del uses[session.kernels[1].id]
    assert idle_for(session, uses) is None


@pytest.mark.parametrize(("percent", "idle"), [(4.0, 60), (50.0, None), (None, None)])
def test_a_gpu_that_is_busy_or_unknown_keeps_the_session(percent, idle):
    session = running(gpu=1)
    main = replace(session.main, allocation=replace(session.main.allocation, gpus=(GpuShare("GPU-a", 1000, True),)))
    session = replace(session, kernels=(main,))
    samples = [sample(NOW + at, gpu_percent=percent) for at in (0, 30, 60)]
    assert idle_for(session, {main.id: seen(session, samples)}) == idle


def test_before_the_end_comes_a_warning_in_the_story_and_for_those_who_are_logged_in():
    session = running()
    assert verdict(session, idle_samples(2970)) is None
    warning = verdict(session, idle_samples(3000))
    assert warning.to_state is SessionState.RUNNING
    assert warning.reason.startswith("idle for 50m (CPU 0.0 %, network 0 B/s); it ends at ")
    assert warning.session == {"notice": f"session {session.name}: {warning.reason}\n", "warned_at": NOW + 3000}
    warned = replace(session, **warning.session)
    assert verdict(warned, idle_samples(3570)) is None
    end = verdict(warned, idle_samples(3600))
    assert (end.to_state, end.session["result"]) == (SessionState.TERMINATING, Result.SUCCESS)
    assert end.reason == "idle for 1h (CPU 0.0 %, network 0 B/s)"


def test_a_late_warning_still_gives_its_whole_time():
    warned = replace(running(), notice="soon", warned_at=NOW + 5000)
    assert verdict(warned, idle_samples(5100)) is None
    assert verdict(warned, idle_samples(5610)).to_state is SessionState.TERMINATING


def test_a_warning_is_taken_back_when_the_session_is_used_again():
    warned = replace(running(), notice="soon", warned_at=NOW + 3000)
    event = verdict(warned, [*idle_samples(3000), sample(NOW + 3030, cpu=30.0)])
    assert (event.reason, event.session) == ("it is in use again", {"notice": None, "warned_at": None})


def test_a_batch_session_that_idles_has_failed():
    warned = replace(running(command="sleep 9999"), notice="soon", warned_at=NOW)
    assert verdict(warned, idle_samples(3600)).session["result"] is Result.FAILURE


@pytest.mark.parametrize("spec", [{"no_idle_check": True}, {"idle_timeout": "9h"}])
def test_the_sessions_timeout_counts_before_the_sites(spec):
    assert verdict(running(**spec), idle_samples(3600)) is None


def test_a_session_does_not_end_while_its_agent_is_asked_whether_it_is_still_idle():
    session = replace(running(), generation=1, notice="soon", warned_at=NOW + 3000)
    usage = LaunchUsage({session.main.id: seen(session, idle_samples(3600))})
    snapshot = Snapshot((), (session,), NOW + 9000)
    assert usage.events(snapshot, lambda _group: RULES, asked=frozenset({"a1", "a2"})) == []
    (end,) = usage.events(snapshot, lambda _group: RULES, asked=frozenset({"a2"}))
    assert end.reason.startswith("idle for 1h ")


def test_without_a_timeout_nothing_ends():
    assert verdict(running(), idle_samples(3600), replace(RULES, timeout_s=None)) is None


def test_users_are_warned_of_a_time_limit_once():
    session = running(time_limit="2h")
    busy = [sample(NOW, cpu=0.0), sample(NOW + 30, cpu=30.0)]
    assert verdict(session, busy, now=NOW + 6599) is None
    warning = verdict(session, busy, now=NOW + 6600)
    assert warning.reason.startswith("its time limit of 2h is reached at ")
    assert verdict(replace(session, **warning.session), busy, now=NOW + 6700) is None
    assert verdict(running(time_limit="10m"), busy, now=NOW + 599) is None


@cheap
@given(samples=st.lists(st.tuples(st.floats(0, 200), st.floats(0, 100), st.integers(0, 1 << 20)), min_size=1))
def test_counters_never_shrink_and_idle_time_is_never_longer_than_what_was_seen(samples):
    session = running()
    at, cpu, net, observed = NOW, 0.0, 0, [sample(NOW)]
    for elapsed, used, carried in samples:
        at, cpu, net = at + elapsed, cpu + used, net + carried
        observed.append(sample(at, cpu, net))
    uses = [seen(session, observed[: end + 1]) for end in range(len(observed))]
    for before, after in pairwise(uses):
        assert after.cpu_seconds >= before.cpu_seconds
        assert after.net_bytes >= before.net_bytes
        assert after.idle_since is None or NOW <= after.idle_since <= after.seen_at


@pytest.mark.parametrize("by", [-3600, 3600])
def test_idle_time_and_gpu_time_go_on_after_an_agents_clock_is_set(by):
    """One that was set back stopped the count until it had caught up; one that was set forward added an hour."""
    kernel = running().main
    use = first_usage(kernel.id, 1, "s", NOW, sample(NOW, gpu_percent=0.0), NOW)
    for seconds in range(30, 301, 30):
        wrong_by = by if seconds > 150 else 0
        use = judged(
            use, next_usage(use, sample(NOW + seconds + wrong_by, gpu_percent=4.0), NOW + seconds), kernel, RULES
        )
    assert use.seen_at - use.idle_since == 300
    assert use.gpu_seconds == pytest.approx(0.04 * 270)


@pytest.mark.parametrize("by", [-3600, 3600])
def test_last_words_by_a_clock_that_was_set_add_no_gpu_time(by):
    use = first_usage("k", 1, "s", NOW, sample(NOW, cpu=1.0, gpu_percent=90.0), NOW)
    last = next_usage(use, sample(NOW + 30 + by, cpu=5.0, gpu_percent=90.0), NOW + 30, is_last=True)
    assert (last.cpu_seconds, last.gpu_seconds, last.seen_at) == (5.0, None, NOW + 30)


def test_gpu_time_goes_on_after_the_control_nodes_clock_is_set_back():
    use = first_usage("k", 1, "s", NOW, sample(NOW, gpu_percent=0.0), NOW)
    later = next_usage(use, sample(NOW + 30, gpu_percent=50.0), NOW - 3570)
    assert later.gpu_seconds == 15.0


def test_unknown_counters_stay_and_gpu_seconds_are_made_of_samples():
    use = KernelUsage("k", 1, "s", NOW, NOW, NOW, cpu_seconds=5.0, mem_peak_bytes=9, net_rx_bytes=1, net_tx_bytes=2)
    later = next_usage(use, sample(NOW + 10, cpu=7.0, gpu_percent=150.0), NOW + 10)
    assert (later.gpu_seconds, later.gpu_percent, later.cpu_cores) == (15.0, 150.0, 0.2)
    gone = UseSample(at=NOW + 11, cpu_seconds=8.0)
    last = next_usage(later, gone, NOW + 11, is_last=True)
    assert (last.cpu_seconds, last.mem_bytes, last.mem_peak_bytes) == (8.0, None, 9)
    assert (last.net_rx_bytes, last.net_tx_bytes, last.gpu_seconds) == (1, 2, 15.0)


def test_a_notice_is_taken_to_the_kernels_that_do_not_have_it_yet():
    session = replace(running(cluster_size=2), notice="soon")
    notices = ("soon", None)
    entries = [kernel_entry(session, k.name, notice=had) for k, had in zip(session.kernels, notices, strict=True)]
    agent = reporting(make_agent("a1"), kernels=entries)
    snapshot = Snapshot((agent,), (session,), NOW)
    assert undelivered(agent, snapshot) == {f"notice of {session.kernels[1].id}: soon"}
    ending = replace(snapshot, sessions=(replace(session, state=SessionState.TERMINATING),))
    assert undelivered(agent, ending) == frozenset()

"""Sums of what was used: of parts of a time, they are those of the whole."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.usage.report import RunUsage, usage_report
from muster.core.values.slots import Slots
from tests.properties import dear
from tests.strategies.values import NOW

GIB = 1 << 30
DAY = 86400.0
MIDNIGHT = NOW - NOW % DAY
ADDITIVE = (
    "cpu_hours_allocated",
    "cpu_hours_used",
    "mem_gib_hours_allocated",
    "gpu_hours_allocated",
    "fgpu_hours_allocated",
    "gpu_hours_used",
    "waits",
    "wait_s",
)
moments = st.integers(0, 4 * 86400).map(lambda seconds: MIDNIGHT + seconds)


def run_of(session="s1", began=MIDNIGHT, ended=MIDNIGHT + 3600, **values):
    return RunUsage(
        **{
            "session_id": session,
            "session_name": session,
            "user": "ada",
            "project": "vision",
            "submitted_at": began - 60,
            "started_at": began,
            "ended_at": ended,
            "kernels": 2,
            "slots": Slots(cpu=2000, mem=4 * GIB, gpu=1, fgpu=500),
            "cpu_seconds": 1800.0,
            "gpu_seconds": 900.0,
            "mem_peak_bytes": GIB,
            **values,
        }
    )


@st.composite
def runs(draw):
    """Draw runs of some sessions, one after the other, each with one run or two."""
    made = []
    for number in range(draw(st.integers(0, 4))):
        user, project = draw(st.sampled_from(["ada", "bob"])), draw(st.sampled_from(["vision", "audio"]))
        cpu_seconds = draw(st.none() | st.floats(0, 1e6))
        first, second, third, fourth = sorted(draw(st.lists(moments, min_size=4, max_size=4)))
        session = run_of(f"s{number}", first, second, user=user, project=project, cpu_seconds=cpu_seconds)
        made.append(session)
        if draw(st.booleans()):
            made.append(replace(session, started_at=third, ended_at=fourth, is_first=False))
    return made


def sums(lines):
    return {name: sum(asdict(line.totals)[name] for line in lines) for name in ADDITIVE}


@dear
@given(runs=runs(), times=st.lists(moments, min_size=3, max_size=3, unique=True).map(sorted))
def test_the_sums_of_two_parts_of_a_time_are_those_of_the_whole(runs, times):
    begin, between, end = times
    whole = sums(usage_report(runs, begin, end, []))
    parts = [sums(usage_report(runs, *part, [])) for part in ((begin, between), (between, end))]
    assert {name: parts[0][name] + parts[1][name] for name in ADDITIVE} == pytest.approx(whole)


@dear
@given(runs=runs(), by=st.lists(st.sampled_from(["user", "project", "day", "session"]), unique=True))
def test_the_sums_of_the_lines_are_those_of_one_line_for_all(runs, by):
    begin, end = MIDNIGHT + 5000, MIDNIGHT + 3 * DAY + 7
    assert sums(usage_report(runs, begin, end, by)) == pytest.approx(sums(usage_report(runs, begin, end, [])))


@dear
@given(runs=runs())
def test_a_session_counts_once_however_often_it_ran(runs):
    lines = usage_report(runs, MIDNIGHT, MIDNIGHT + 5 * DAY, ["session"])
    assert all((line.totals.sessions, line.totals.kernels) == (1, 2) for line in lines)
    assert len(lines) == len({run.session_id for run in runs})


def test_only_the_part_of_a_run_within_the_time_counts():
    (line,) = usage_report([run_of()], MIDNIGHT + 1800, MIDNIGHT + 5400, ["user"])
    totals = line.totals
    assert line.keys == ("ada",)
    assert (totals.cpu_hours_allocated, totals.cpu_hours_used) == (1.0, 0.25)
    assert (totals.mem_gib_hours_allocated, totals.mem_peak_bytes) == (2.0, GIB)
    assert (totals.gpu_hours_allocated, totals.fgpu_hours_allocated, totals.gpu_hours_used) == (0.5, 0.25, 0.125)
    assert (totals.waits, totals.wait_s) == (0, 0.0)


def test_a_run_over_midnight_counts_on_both_days_and_its_wait_on_the_first():
    run = run_of(began=MIDNIGHT - 1800, ended=MIDNIGHT + 1800)
    lines = usage_report([run], MIDNIGHT - DAY, MIDNIGHT + DAY, ["day"])
    assert [line.totals.cpu_hours_allocated for line in lines] == [1.0, 1.0]
    assert [line.totals.waits for line in lines] == [1, 0]
    assert lines[0].totals.longest_wait_s == 60


def test_a_run_without_length_counts_with_all_that_it_used():
    (line,) = usage_report([run_of(ended=MIDNIGHT)], MIDNIGHT, MIDNIGHT + 1, [])
    assert (line.totals.sessions, line.totals.cpu_hours_allocated, line.totals.cpu_hours_used) == (1, 0.0, 0.5)


def test_the_sessions_of_an_array_are_one_line():
    array = [
        run_of(f"s{number}", session_name=f"sweep-{number}", array_id="abcdefgh-1", array_name="sweep")
        for number in range(3)
    ]
    (line, other) = usage_report([*array, run_of("t1234567-8")], MIDNIGHT, MIDNIGHT + DAY, ["session"])
    assert (line.keys, line.totals.sessions) == (("sweep abcdefgh",), 3)
    assert other.keys == ("t1234567-8 t1234567",)

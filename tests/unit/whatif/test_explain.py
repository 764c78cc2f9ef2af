"""What `muster why` says of each reason to wait."""

from collections.abc import Sequence

import pytest

from muster.core.model.session import GpuShare
from muster.core.model.wait import LimitHit, LimitKind, NearestMiss, Wait, WaitCode
from muster.core.whatif.explain import Surroundings, explain, moment_text, placed_where, start_text
from muster.service.questions.views import PlacedKernelView
from muster.service.sessions.views import SessionView, WaitView
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

C = WaitCode
G = 1 << 30
AROUND = Surroundings(NOW, lambda at: f"T+{at - NOW:g}", {"id-1": "prep (RUNNING)", "id-2": "lab (RUNNING)"})

EXAMPLES = [
    (
        Wait(C.NEVER_FITS, "never fits …", agents_considered=2, exhausted={"gpu": 2},
             nearest=NearestMiss("gpu-07", {"gpu": 4})),
        ["too little even when empty: GPU on 2 of 2 agents", "closest: agent gpu-07, which lacks 4 GPU",
         "waiting does not help; for what would, see: muster why train --what-if"],
    ),
    (Wait(C.NO_AGENTS, "resource group x has no agents"),
     ["waiting does not help; submit it to another group; to list them: muster agents"]),
    (Wait(C.NEVER_RUNS, "prep failed", waits_for=("id-1",)),
     ["waits for: prep (RUNNING)", "waiting does not help; end it: muster cancel train"]),
    (
        Wait(C.BUSY, "too little is free now; …", agents_considered=3, filtered={"lost": 1, "drained": 2, "label": 1},
             exhausted={"cpu": 1, "mem": 3}, nearest=NearestMiss("a1", {"mem": 2 * G, "cpu": 500}), passes=7,
             endless=2, estimated_start=NOW + 1200),
        ["too little is free now: CPU on 1 of 3 agents, memory on 3 of 3 agents",
         "closest: agent a1, which lacks 0.5 CPU and 2 GiB memory",
         "agents left out: 2 drained, 1 without its labels, 1 lost",
         "it was the first in the queue that did not fit 7 times",
         "nobody knows when capacity is free: 2 sessions run without a time limit",
         "estimated start: T+1200 (in 20m)",
         "to see what would let it start: muster why train --what-if"],
    ),
    (Wait(C.BEHIND, "waits behind prep", waits_for=("id-1",)), ["waits for: prep (RUNNING)"]),
    (Wait(C.RETRY, "the last launch failed", until=NOW + 5), ["not before: T+5 (in 5s)"]),
    (Wait(C.HELD, "held by ada"), ["to release it: muster release train"]),
    (Wait(C.BEGIN, "begins later", until=NOW + 7200), ["not before: T+7200 (in 2h)"]),
    (Wait(C.DEPENDENCY, "waits for others", waits_for=("id-1", "id-9")), ["waits for: prep (RUNNING), id-9"]),
    (
        Wait(C.LIMIT, "ada may run 8 GiB memory", limit=LimitHit(LimitKind.USER, "ada", "mem", 8 * G, 6 * G, 4 * G)),
        ["limit of user ada: 8 GiB memory at a time; 6 GiB memory now, and it asks for 4 GiB memory"],
    ),
    (Wait(C.ARRAY, "8 of its array run", limit=LimitHit(LimitKind.ARRAY, "", "sessions", 8, 8, 1)),
     ["limit of its array: 8 sessions at a time; 8 sessions now, and it asks for 1 session"]),
    (Wait(C.WINDOW, "maintenance", until=NOW + 60), ["not before: T+60 (in 1m)"]),
    (
        Wait(C.PREEMPTING, "starts when others have gone", waits_for=tuple(f"id-{n}" for n in range(1, 9))),
        ["waits for: prep (RUNNING), lab (RUNNING), id-3, id-4, id-5 and 3 more"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wait", "expected"), EXAMPLES, ids=[wait.code for wait, _ in EXAMPLES])
def test_every_reason_is_explained(wait: Wait, expected: Sequence[str]):
    session = SessionView.of(make_session(name="train", gpu=4, priority=60))
    lines = explain(session, wait, 3, AROUND)
    seen = explain(session, WaitView.of(wait), 3, AROUND)
    assert seen == lines
    assert lines[:2] == [
        "place in the queue of group default: 3", "it asks for 1 CPU, 1 GiB memory, 4 GPU in 1 container, priority 60"
    ]  # fmt: skip
    assert [line for line in lines if line in expected] == expected


def test_there_is_an_example_of_every_code():
    assert {wait.code for wait, _ in EXAMPLES} == set(WaitCode)


def test_a_session_that_is_about_to_start_is_shown_no_place_in_the_queue():
    lines = explain(SessionView.of(make_session()), Wait(C.BUSY, "busy"), 0, AROUND)
    assert not any("place in the queue" in line for line in lines)


def test_times_are_given_as_instants_and_as_durations():
    assert moment_text(NOW + 90, AROUND) == "T+90 (in 1m30s)"
    assert moment_text(NOW - 5, AROUND) == "T+-5 (now)"
    assert start_text(Wait(C.BUSY, "busy", estimated_start=NOW + 60, until=NOW + 1), AROUND) == "T+60 (in 1m)"
    assert start_text(Wait(C.BUSY, "busy"), AROUND) == "-"


def test_a_placement_is_given_by_agent_and_gpu():
    kernels = [
        PlacedKernelView(name="main1", agent="a1", gpus=[GpuShare("u0", 1000, whole=True)]),
        PlacedKernelView(name="sub1", agent="a2", gpus=[GpuShare("u7", 500, whole=False)]),
        PlacedKernelView(name="sub2", agent="a1", gpus=[]),
    ]
    assert placed_where(kernels, {"u0": 0, "u7": 7}) == [
        "agent a1: main1 on GPU 0; sub2",
        "agent a2: sub1 on GPU 7 (0.5 fGPU)",
    ]

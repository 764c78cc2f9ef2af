"""`why`, `queue`, `submit --dry-run` and `why --what-if`: questions that change nothing."""

import pytest

from muster.core.model.wait import Wait, WaitCode
from muster.store.store import Store
from tests.command_line import muster, nothing_queued, submitted, write_settings
from tests.strategies.agents import make_agent


@pytest.fixture
def agents(store: Store) -> Store:
    hardware = {"cpus": 16, "mem_bytes": 64 << 30, "gpus": 4, "units_per_gpu": 2}
    store.agents.save([make_agent("a1", **hardware), make_agent("a2", cpus=64, resource_group="big")])
    return store


@pytest.mark.usefixtures("agents")
def test_a_dry_run_says_where_it_would_start_and_queues_nothing():
    answer = muster("submit", "--dry-run", "--name", "train", "--cluster-size", "2", "--gpu", "1", "--", "true")
    assert (answer.code, answer.err) == (0, "")
    first, agent = answer.out.splitlines()
    assert first == "train would start now, single-node:"
    assert agent.startswith("  agent a1: main1 on GPU ")
    assert nothing_queued()


@pytest.mark.usefixtures("agents")
def test_a_dry_run_of_an_elastic_session_says_what_it_would_be_given():
    gang = ("submit", "--dry-run", "--name", "train", "--gpu", "1", "--cluster-size")
    answer = muster(*gang, "2-6", "--", "true")
    assert answer.out.splitlines()[0] == "train would start now with 4 of 2-6 containers, single-node:"
    (view,) = muster(*gang, "2-6", "--json", "--", "true").json
    assert (view["cluster_size"], view["size"], len(view["kernels"]), view["slots"]["gpu"]) == (4, "4 of 2-6", 4, 4)
    never = muster(*gang, "5-6", "--", "true")
    assert never.code == 2
    assert "  it asks for 5 CPU, 5 GiB memory, 5 GPU in 5 containers at least (of 5-6), priority 50" in never.out
    assert "    at least 4 containers instead of 5: --cluster-size 4-6" in never.out.splitlines()


@pytest.mark.usefixtures("agents")
def test_a_dry_run_as_json_names_agents_and_gpus():
    answer = muster("submit", "--dry-run", "--json", "--name", "train", "--fgpu", "0.5")
    (view,) = answer.json
    assert (view["starts_now"], view["mode"], view["wait"], view["suggestions"]) == (True, "single-node", None, [])
    (kernel,) = view["kernels"]
    assert (kernel["agent"], [share["amount"] for share in kernel["gpus"]]) == ("a1", [500])


@pytest.mark.usefixtures("agents")
def test_a_dry_run_of_what_never_fits_says_what_would():
    answer = muster("submit", "--dry-run", "--name", "train", "--gpu", "6")
    assert answer.code == 2
    assert answer.out.splitlines()[0].startswith("train would never start: it asks for more than ")
    assert "    4 GPU for each container instead of 6 GPU: --gpu 4" in answer.out.splitlines()


def test_a_dry_run_of_what_would_wait_has_its_own_exit_code(agents):
    agents.agents.drain("a1", "disks")
    answer = muster("submit", "--dry-run", "--name", "train", "--cpu", "4")
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert lines[0].startswith("train would wait: ")
    assert "    resource group big instead of default: --resource-group big" in lines
    assert "    agent a1 is resumed" in lines
    assert "  agent a1 is drained: disks" in lines


def test_a_suggestion_that_is_taken_starts(agents):
    agents.agents.drain("a1", "disks")
    wish = ["--dry-run", "--json", "--name", "train", "--cpu", "4"]
    (view,) = muster("submit", *wish).json
    flags = next(s["flags"] for s in view["suggestions"] if "--resource-group" in s["flags"])
    assert muster("submit", *wish, *flags).code == 0


@pytest.mark.usefixtures("agents")
def test_a_dry_run_of_several_counts_those_that_would_start():
    answer = muster("submit", "--dry-run", "--name", "train", "--count", "3", "--gpu", "2")
    assert answer.code == 1
    assert answer.out.splitlines()[-1] == "2 of 3 sessions would start now"
    assert answer.out.count("any one of these would let it start") == 1


@pytest.mark.usefixtures("agents")
def test_a_dry_run_of_several_says_of_the_first_alone_what_was_tried():
    answer = muster("submit", "--dry-run", "--name", "train", "--array", "0-4", "--gpu", "2")
    assert (answer.out.count(" would start now"), answer.out.count(" would wait: ")) == (3, 3)
    assert answer.out.count("any one of these would let it start") == 1
    assert "nothing that was tried" not in answer.out


def test_a_dry_run_refuses_what_submit_refuses():
    submitted("--name", "train")
    taken = muster("submit", "--dry-run", "--name", "train")
    assert (taken.code, "already called train" in taken.err) == (2, True)
    wrong = muster("submit", "--dry-run", "--cpu", "much")
    assert (wrong.code, wrong.errors[0].startswith("muster: cpu: ")) == (2, True)


@pytest.mark.usefixtures("agents")
def test_a_dry_run_knows_what_its_sessions_come_after():
    first = submitted("--name", "prep")
    answer = muster("submit", "--dry-run", "--json", "--name", "train", "--after-ok", "prep")
    (view,) = answer.json
    assert (answer.code, view["wait"]["code"], view["wait"]["waits_for"]) == (1, "dependency", [first["id"]])
    assert muster("cancel", "prep").code == 0
    (view,) = muster("submit", "--dry-run", "--json", "--name", "train", "--after-any", first["id"]).json
    assert view["starts_now"]


@pytest.mark.usefixtures("agents")
def test_the_queue_stands_in_the_order_of_the_next_decision():
    submitted("--name", "low", "--cpu", "16", "--priority", "10")
    submitted("--name", "other", "--cpu", "64", "--resource-group", "big")
    submitted("--name", "high", "--cpu", "16", "--priority", "90")
    submitted("--name", "huge", "--cpu", "17")
    header, *rows = (line.split() for line in muster("queue").out.splitlines())
    assert header[:7] == ["POS", "GROUP", "ID", "NAME", "OWNER", "PRIORITY", "SIZE"]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("-", "big", "other"), ("-", "default", "high"), ("1", "default", "huge"), ("2", "default", "low")
    ]  # fmt: skip
    assert [q["name"] for q in muster("queue", "--group", "big", "--json").json] == ["other"]
    queue = {q["name"]: q for q in muster("queue", "--json").json}
    assert (queue["huge"]["wait"]["code"], queue["low"]["position"], queue["high"]["wait"]) == ("never-fits", 2, None)


def test_an_empty_queue_is_a_header():
    assert len(muster("queue").out.splitlines()) == 1


@pytest.mark.usefixtures("agents")
def test_why_what_if_of_a_session_that_waits():
    session = submitted("--name", "train", "--gpu", "6")
    answer = muster("why", "train", "--what-if")
    assert (answer.code, "    4 GPU for each container instead of 6 GPU: --gpu 4" in answer.out.splitlines()) == (
        0,
        True,
    )
    view = muster("why", session["id"], "--what-if", "--json").json
    assert view["suggestions"][0]["flags"] == ["--gpu", "4"]


@pytest.mark.usefixtures("agents")
def test_why_what_if_does_not_advise_to_ask_what_it_answers(store: Store):
    session = submitted("--name", "train", "--gpu", "6")
    store.save_waits({session["id"]: Wait(WaitCode.NEVER_FITS, "it asks for more than any agent has")})
    assert "for what would, see: muster why train --what-if" in muster("why", "train").out
    assert "--what-if" not in muster("why", "train", "--what-if").out
    held = submitted("--name", "later", "--hold")
    store.save_waits({held["id"]: Wait(WaitCode.HELD, "held by ada")})
    assert "  to release it: muster release later" in muster("why", "later", "--what-if").out.splitlines()


def test_why_what_if_is_for_sessions_that_wait():
    submitted("--name", "train")
    muster("cancel", "train")
    answer = muster("why", "train", "--what-if")
    assert (answer.code, "is CANCELLED, no longer pending" in answer.err) == (1, True)


def test_why_tells_for_what_an_agent_was_drained_that_it_counts_as_left_out(agents: Store):
    agents.agents.save([make_agent("a0", cpus=1)])
    agents.agents.drain("a1", "new disks")
    session = submitted("--name", "train", "--cpu", "4")
    agents.save_waits({session["id"]: Wait(WaitCode.BUSY, "too little is free now", filtered={"drained": 1})})
    lines = muster("why", "train").out.splitlines()
    assert lines[lines.index("  agents left out: 1 drained") + 1] == "  agent a1 is drained: new disks"
    assert muster("why", "train", "--json").json["left_out"] == ["agent a1 is drained: new disks"]
    agents.agents.resume("a1")
    assert "new disks" not in muster("why", "train").out


@pytest.mark.usefixtures("agents")
def test_why_names_the_place_in_the_queue_and_those_ahead(store: Store):
    first = submitted("--name", "prep", "--hold")
    session = submitted("--name", "train", "--after", "prep")
    wait = Wait(WaitCode.DEPENDENCY, "it starts after prep", waits_for=(first["id"],))
    store.save_waits({session["id"]: wait})
    lines = muster("why", "train").out.splitlines()
    assert lines[0] == "train is PENDING: it starts after prep"
    assert "  place in the queue of group default: 2" in lines
    assert "  waits for: prep (PENDING)" in lines
    view = muster("why", "train", "--json").json
    assert (view["wait"]["code"], view["wait"]["position"]) == ("dependency", 2)


@pytest.mark.usefixtures("agents")
def test_no_change_is_suggested_that_the_site_refuses(tmp_path):
    submitted("--name", "head", "--cpu", "16", "--gpu", "4", "--priority", "60")
    submitted("--name", "next", "--cpu", "16", "--priority", "60")
    long = ("--name", "train", "--cpu", "16", "--time-limit", "3d")
    raised = "    priority 61 instead of 50: --priority 61"
    moved = "    resource group big instead of default: --resource-group big"
    assert {raised, moved} <= set(muster("submit", "--dry-run", *long).out.splitlines())
    write_settings(tmp_path, {"max_priority": {"*": 60}, "idle": {"resource_groups": {"big": {"max_lifetime": "1d"}}}})
    said = muster("submit", "--dry-run", *long).out.splitlines()
    assert {raised, moved}.isdisjoint(said)
    submitted(*long)
    assert {raised, moved}.isdisjoint(muster("why", "train", "--what-if").out.splitlines())
    for flags in (("--priority", "61"), ("--resource-group", "big")):
        assert muster("submit", *long[2:], *flags).code == 2

"""`muster agents` and `muster agent`: showing agents, taking them out of service and back in."""

import threading
from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.agents.launch_record import FailedLaunch, LaunchRecord
from muster.core.lifecycle import transitions
from muster.core.model.session import SessionState
from tests.command_line import muster
from tests.strategies.agents import make_agent, reporting
from tests.strategies.values import NOW
from tests.unit.running_sessions import running_session


@pytest.fixture
def cluster(store):
    """Return two agents with one session that lies on both, and one on the second alone."""
    store.agents.save([make_agent("a1", cpus=4, gpus=1), make_agent("a2", resource_group="gpu")])
    store.add(
        [
            running_session(1, "a1", "a2", name="train", cluster_size=2, cpu=1),
            running_session(2, "a2", name="lab", cpu=2),
        ]
    )
    return store


def states() -> dict[str, str]:
    return {line.split()[0]: line.split()[2] for line in muster("agents").out.splitlines()[1:]}


def end(store, name: str) -> None:
    """End the session as if its agents had said that nothing is left of it."""
    session = store.find(name)
    store.apply([transitions.Event(session.id, NOW, session.state, SessionState.TERMINATED, "ended", {}, {})])


def test_agents_tell_what_is_free_and_what_is_wrong(cluster):
    lost = replace(make_agent("a3"), state=AgentState.LOST, problem="no route to host", unreachable_since=NOW)
    cluster.agents.save([lost])
    row = muster("agents").out.splitlines()[1].split()
    assert (row[:4], row[7]) == (["a1", "default", "ALIVE", "3/4"], "1")
    assert states() == {"a1": "ALIVE", "a2": "ALIVE", "a3": "LOST"}
    assert muster("agents").out.splitlines()[3].endswith("no route to host")
    listed = {agent["id"]: agent for agent in muster("agents", "--json").json}
    assert (listed["a3"]["state"], listed["a3"]["problem"]) == ("LOST", "no route to host")
    assert listed["a3"]["unreachable_since"].startswith("2025-11-21T")
    assert [session["name"] for session in listed["a2"]["sessions"]] == ["train", "lab"]


def test_show_names_what_the_agent_has_and_what_runs_on_it(cluster):
    agent = reporting(
        make_agent("a1", cpus=4, gpus=1),
        swarm={"state": "active", "node_id": "n1", "manager": True, "encrypts": False},
        images=[{"id": "sha256:0123456789abcdef", "tags": ["muster/default:latest"], "size_bytes": 1 << 30}],
    )
    cluster.agents.save([agent])
    out = muster("agent", "show", "a1").out
    for part in ("active, manager", "train", "main1", "GPU-a1-0", "muster/default:latest", "0123456789ab", "1G"):
        assert part in out
    assert "lab" not in out
    shown = muster("agent", "show", "a1", "--json").json
    assert shown["sessions"] == [{"id": cluster.find("train").id, "name": "train", "state": "RUNNING"}]
    assert (shown["free"]["cpu"], shown["swarm"]["manager"]) == (3000, True)


def test_agents_are_listed_by_their_labels(cluster):
    a100 = make_agent("a3", labels={"gpu": "a100", "disk": "ssd"}, rack="r1", zone="hall-2", gpus=2, numa_nodes=2)
    cluster.agents.save([a100, make_agent("a4", labels={"gpu": "a100"}, units_per_gpu=4, gpus=1)])
    listed = muster("agents", "--label", "gpu=a100", "--json").json
    assert [agent["id"] for agent in listed] == ["a3", "a4"]
    assert (listed[0]["labels"], listed[0]["rack"], listed[0]["zone"]) == (a100.labels, "r1", "hall-2")
    assert (listed[1]["rack"], listed[1]["numa"]) == (None, [])
    assert [node["cpus"] for node in listed[0]["numa"]] == ["0-3", "4-7"]
    table = muster("agents", "--label", "gpu=a100", "--label", "disk=ssd").out.splitlines()
    assert [line.split()[0] for line in table] == ["AGENT", "a3"]
    none = muster("agents", "--label", "gpu=h200")
    assert (none.code, none.errors) == (0, ["no agent has gpu=h200; `muster agent show AGENT` tells an agent's labels"])
    wrong = muster("agents", "--label", "a100")
    assert (wrong.code, wrong.errors) == (2, ["muster: --label: 'a100' has no =; write NAME=VALUE"])


def test_show_tells_where_an_agent_stands_and_what_is_near_to_what(cluster):
    a100 = make_agent("a3", labels={"gpu": "a100", "disk": "ssd"}, rack="r1", gpus=2, units_per_gpu=4, numa_nodes=2)
    cluster.agents.save([a100])
    lines = [line.split() for line in muster("agent", "show", "a3").out.splitlines()]
    assert ["Labels:", "disk=ssd,", "gpu=a100"] in lines
    assert ["Rack:", "r1"] in lines
    assert not any(line[:1] == ["Zone:"] for line in lines)
    assert ["1", "GPU-a3-1", "T", "1G", "4", "1", "-"] in lines
    assert ["1", "4-7", "8G"] in lines


def test_an_error_in_the_inventory_is_an_agents_problem(cluster):
    cluster.agents.save([make_agent("a3", labels="gpu")])
    assert "inventory: labels: 'gpu' is not a mapping;" in muster("agents").out


def test_a_drained_agent_is_drained_once_and_resumed_once(cluster):
    answer = muster("agent", "drain", "a2", "--reason", "new disks", "--json")
    (drained,) = answer.json
    assert (drained["id"], drained["changed"], drained["drain_reason"]) == ("a2", True, "new disks")
    assert [session["name"] for session in drained["sessions"]] == ["train", "lab"]
    assert muster("agent", "drain", "a2", "--reason", "new disks", "--json").json[0]["changed"] is False
    assert states() == {"a1": "ALIVE", "a2": "ALIVE,DRAINING"}
    assert "new disks" in muster("agent", "show", "a2").out
    end(cluster, "train")
    end(cluster, "lab")
    assert states()["a2"] == "ALIVE,DRAINED"
    (resumed,) = muster("agent", "resume", "a2", "--json").json
    assert resumed == {"id": "a2", "changed": True, "drain_reason": None, "sessions": []}
    assert muster("agent", "resume", "a2", "--json").json[0]["changed"] is False
    assert states()["a2"] == "ALIVE"


def test_an_agent_that_cannot_remove_something_says_it(cluster):
    left = [{"name": "network muster-1e9c", "error": "it is in use by task 5lxj"}, {"name": "files", "error": "busy"}]
    cluster.agents.save([reporting(make_agent("a1"), leftovers=left)])
    assert muster("agents").out.splitlines()[1].endswith("2 left of ended sessions: see `muster agent show a1`")
    assert {agent["id"]: agent["leftovers"] for agent in muster("agents", "--json").json} == {"a1": 2, "a2": 0}
    line = "Not removed: network muster-1e9c: it is in use by task 5lxj (and 1 more)"
    assert line in muster("agent", "show", "a1").out.splitlines()
    assert muster("agent", "show", "a1", "--json").json["not_removed"] == left


def test_a_suspect_agent_says_why_and_until_when_and_is_resumed(cluster):
    failures = tuple(FailedLaunch(f"0000000{number}-0000", "ada") for number in (1, 2, 3))
    cluster.agents.save_launch_records(
        {"a1": LaunchRecord(failures, NOW, "launches of 3 sessions failed there in a row")}
    )
    assert states() == {"a1": "ALIVE,SUSPECT", "a2": "ALIVE"}
    assert muster("agents").out.splitlines()[1].endswith("launches of 3 sessions failed there in a row")
    listed = {agent["id"]: agent for agent in muster("agents", "--json").json}
    assert (listed["a1"]["suspect"], listed["a2"]["suspect"]) == ("launches of 3 sessions failed there in a row", None)
    assert listed["a1"]["suspect_until"].startswith("2025-11-21T")
    assert "in a row (00000001, 00000002, 00000003); until 2025-11-21" in muster("agent", "show", "a1").out
    assert muster("agent", "resume", "a1", "--json").json[0]["changed"] is True
    assert states()["a1"] == "ALIVE"


def test_an_agent_that_is_not_given_up_says_why(cluster):
    silent = [
        make_agent(agent_id, connection="ssh").unanswered("no route to host", NOW, reached=False)
        for agent_id in ("a1", "a2")
    ]
    cluster.agents.save(silent)
    listed = muster("agents", "--json").json
    problem = "no route to host; 2 of 2 agents do not answer: the network of the control node seems to be down"
    assert all(agent["problem"].startswith(problem) for agent in listed)
    assert "the network of the control node" in muster("agent", "show", "a1").out


@pytest.mark.usefixtures("cluster")
def test_drain_names_the_administrator_if_no_reason_is_given():
    assert muster("agent", "drain", "a1").out == "a1 is ALIVE,DRAINING (drained by ada); 1 sessions are on it\n"


@pytest.mark.usefixtures("cluster")
def test_an_agent_that_is_drained_keeps_its_reason_until_another_is_given():
    muster("agent", "drain", "a1", "--reason", "new disks")
    (again,) = muster("agent", "drain", "a1", "--json").json
    assert (again["drain_reason"], again["changed"]) == ("new disks", False)
    muster("agent", "drain", "a1", "--wait", "--timeout", "0")
    assert [agent["drain_reason"] for agent in muster("agent", "drain", "a1", "a2", "--json").json] == [
        "new disks", "drained by ada"
    ]  # fmt: skip
    (other,) = muster("agent", "drain", "a1", "--reason", "memory", "--json").json
    assert (other["drain_reason"], other["changed"]) == ("memory", True)


@pytest.mark.usefixtures("cluster")
def test_drain_takes_several_agents_or_none():
    answer = muster("agent", "drain", "a1", "nosuch", "nor-this")
    assert (answer.code, answer.errors) == (2, ["muster: there is no agent nosuch, nor-this; see `muster agents`"])
    assert states() == {"a1": "ALIVE", "a2": "ALIVE"}
    assert [agent["changed"] for agent in muster("agent", "drain", "a1", "a2", "a1", "--json").json] == [True, True]


@pytest.mark.parametrize("command", [["show"], ["drain"], ["resume"]])
@pytest.mark.usefixtures("cluster")
def test_an_agent_that_does_not_exist_is_bad_input(command):
    answer = muster("agent", *command, "nosuch")
    assert (answer.code, answer.errors) == (2, ["muster: there is no agent nosuch; see `muster agents`"])


def test_drain_waits_until_the_last_session_is_gone(cluster):
    end(cluster, "train")
    ending = threading.Timer(0.5, end, (cluster, "lab"))
    ending.start()
    answer = muster("agent", "drain", "a2", "--wait", "--timeout", "60")
    ending.join()
    assert (answer.code, answer.err) == (0, "waiting for lab on a2\n")
    assert answer.out == "a2 is ALIVE,DRAINED (drained by ada)\n"


@pytest.mark.usefixtures("cluster")
def test_drain_stops_waiting_after_its_time_and_stays_drained():
    answer = muster("agent", "drain", "a1", "--wait", "--timeout", "0", "--json")
    assert answer.code == 1
    assert answer.errors == ["muster: still waiting for train on a1; --end-sessions ends them"]
    assert states()["a1"] == "ALIVE,DRAINING"
    assert muster("agent", "drain", "a1", "--timeout", "1").code == 2


def test_drain_ends_the_agents_sessions_if_requested(cluster):
    muster("agent", "drain", "a1", "--end-sessions")
    assert (cluster.find("train").state, cluster.find("lab").state) == ("TERMINATING", "RUNNING")


@pytest.mark.usefixtures("cluster")
def test_a_planned_drain_says_what_it_would_hit_and_changes_nothing():
    planned = muster("agent", "drain", "a2", "--plan", "--json")
    assert planned.code == 0, planned.err
    assert [session["name"] for session in planned.json["sessions"]] == ["train", "lab"]
    assert planned.json["agents"] == [{"id": "a2", "empty_at": None}]
    assert states() == {"a1": "ALIVE", "a2": "ALIVE"}
    out = muster("agent", "drain", "a2", "--plan").out.splitlines()
    assert out[0].split("  ")[0] == "SESSION"
    assert out[1].split()[:4] == ["train", "ada", "RUNNING", "a1,a2"]
    assert out[-1].split() == ["a2", "nobody", "knows"]
    assert muster("agent", "drain", "a2", "--plan", "--wait").errors == [
        "muster: --plan: it changes nothing; leave out --wait, --end-sessions and --reason"
    ]
    assert muster("agent", "drain", "nosuch", "--plan").errors == [
        "muster: there is no agent nosuch; see `muster agents`"
    ]

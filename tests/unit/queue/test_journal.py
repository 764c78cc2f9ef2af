"""The daemon's log: each event once, by the session's name."""

import logging

import pytest

from muster.core.agents.agent import leftovers_line
from muster.core.values.errors import AnsibleFailedError
from muster.service.queue.loop import Nudge
from muster.service.trouble import Trouble
from tests.unit.queue.test_loop import Lock, daemon, eventually


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "muster.queue")
    return lambda: [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "muster.queue"]


def of_session(lines, name):
    return [text for _, text in lines() if text.startswith(f"session {name}: ")]


@pytest.fixture
def node(control_node, agents):
    made = control_node(*agents)
    made.run()
    return made


def test_each_change_of_a_session_by_any_process_is_logged_once(node, lines, caplog):
    with daemon(node, Lock(), interval_s=0.05) as loop:
        session = node.submit(name="train")
        loop.send(Nudge.QUEUE)
        eventually(lambda: any("PREPARING -> RUNNING" in line for line in of_session(lines, "train")))
        node.end(session)
        loop.send(Nudge.QUEUE)
        eventually(lambda: any("-> TERMINATED" in line for line in of_session(lines, "train")))
        looked = len(node.gateway.observations)
        eventually(lambda: len(node.gateway.observations) > looked + 2)
    of_train = of_session(lines, "train")
    assert of_train[0] == "session train: PENDING: submitted"
    assert of_train[1].startswith("session train: PENDING -> SCHEDULED: ")
    assert "RUNNING -> TERMINATING: ended by ada" in " ".join(of_train)
    assert len(of_train) == len(set(of_train)) == len(node.store.story(session.id))
    fields = next(record.fields for record in caplog.records if record.getMessage() == of_train[1])
    assert (fields["session"], fields["session_id"]) == ("train", session.id)
    assert (fields["from_state"], fields["to_state"]) == ("PENDING", "SCHEDULED")


def test_sessions_that_end_while_the_daemon_stops_are_logged_too(node, lines):
    with daemon(node, Lock()) as loop:
        node.submit(name="last")
        loop.send(Nudge.QUEUE)
    assert len(of_session(lines, "last")) == len(node.store.story(node.store.find("last").id))


def test_an_agent_that_stays_away_is_one_line_and_its_return_another(node, lines, agents):
    agents[1].reachable = False
    with daemon(node, Lock(), interval_s=0.05):
        looked = len(node.gateway.observations)
        eventually(lambda: len(node.gateway.observations) > looked + 4)
        agents[1].reachable = True
        eventually(lambda: ("INFO", "agent a2 answers again") in lines())
    about = [(level, text) for level, text in lines() if text.startswith("agent ")]
    assert [level for level, _ in about] == ["WARNING", "INFO"]


def test_what_an_agent_cannot_remove_is_one_line_and_its_removal_another(node, lines, agents):
    agents[0].resists, agents[0].leftover_files = True, "files of session 6f1c"
    node.submit()
    with daemon(node, Lock(), interval_s=0.05):
        eventually(lambda: len(node.gateway.manifests) > 4)
        (shown,) = (agent for agent in node.store.agents.all() if agent.id == "a1")
        agents[0].resists = False
        eventually(lambda: ("INFO", "agent a1 has removed what it could not") in lines())
    said = "agent a1 cannot remove files of session 6f1c: it is busy"
    assert next((level, text) for level, text in lines() if text.startswith("agent ")) == ("WARNING", said)
    assert [text for _, text in lines()].count(said) == 1
    assert leftovers_line(shown) == "files of session 6f1c: it is busy"


def test_a_failure_of_ansible_is_not_repeated_at_each_observation(node, lines):
    lock, clock = Lock(), [node.now]
    with daemon(node, lock, interval_s=0.05, clock=lambda: clock[0]):
        node.gateway.fails = AnsibleFailedError("the inventory cannot be read")
        eventually(lambda: ("ERROR", "the inventory cannot be read") in lines())
        decided = lock.decisions
        eventually(lambda: lock.decisions > decided + 6)
        node.gateway.fails = None
        clock[0] += 60
        eventually(lambda: ("INFO", "visits to agents go well again") in lines())
    assert [text for level, text in lines() if level == "ERROR"] == ["the inventory cannot be read"]


def test_a_trouble_that_comes_back_is_a_line_again(caplog):
    log = logging.getLogger("muster.test")
    trouble = Trouble(log, logging.WARNING)
    caplog.set_level(logging.INFO, "muster.test")
    for text in ("a", "a", "b", "b", None, None, "b"):
        trouble.over("over") if text is None else trouble.note(text)
    assert [record.getMessage() for record in caplog.records] == ["a", "b", "over", "b"]

"""What kernels leave on their agents: it is fetched, kept and removed, also when their agents were away."""

import pytest

from muster.core.model.session import SessionState
from muster.core.turn import last_words
from tests.unit.queue.passes.hosts_away.agents_away import gang, is_lost

S = SessionState


def test_the_last_words_on_an_idle_agent_are_removed_once_they_are_kept(node, agents):
    session = node.submit()
    node.run()
    node.end(session)
    node.run()
    assert (node.state(session), list(agents[0].spool)) == (S.TERMINATED, [session.id])
    node.run()
    assert agents[0].spool == {}
    assert node.store.log(session.id, "main1") == b"main1\n"


def test_last_words_that_the_control_node_never_got_are_fetched_when_their_agent_is_back(node, agents):
    session = gang(node)
    node.run()
    node.end(session)
    agents[0].answer_gets_lost = True
    node.run()
    agents[0].reachable = agents[0].answer_gets_lost = False
    is_lost(node)
    assert (node.state(session), node.store.log(session.id, "main1")) == (S.TERMINATED, None)
    agents[0].reachable = True
    node.run()
    assert node.store.log(session.id, "main1") == b"main1\n"
    node.run()
    assert agents[0].spool == {}
    visits = agents[0].visits
    node.run()
    assert agents[0].visits == visits + 1


def test_no_last_words_are_lost_where_one_visit_cannot_fetch_them_all(node, agents, monkeypatch):
    monkeypatch.setattr(last_words, "MOST_FETCHED", 1)
    sessions = [node.submit(agents=["a1"], cpu="500m") for _ in range(3)]
    node.run()
    for session in sessions:
        node.end(session)
    agents[0].answer_gets_lost = True
    node.run()
    agents[0].reachable = agents[0].answer_gets_lost = False
    is_lost(node)
    assert agents[0].spool.keys() == {session.id for session in sessions}
    agents[0].reachable = True
    for _ in range(4):
        node.run()
    assert [node.store.log(session.id, "main1") for session in sessions] == [b"main1\n"] * 3
    assert agents[0].spool == {}


@pytest.mark.parametrize("is_by_cron", [False, True])
def test_last_words_that_will_never_come_are_not_fetched_again_and_again(node, agents, is_by_cron):
    """One of the kernels has vanished: nobody has its log. With cron, each pass is a process of its own."""

    def make_pass():
        if is_by_cron:
            node.restart()
        node.run()

    session = node.submit(cluster_size=2)
    make_pass()
    del agents[0].containers[session.kernels[1].id]
    make_pass()
    assert node.state(session) is S.TERMINATED
    for _ in range(3):
        make_pass()
    assert agents[0].spool == {}
    visits = agents[0].visits
    make_pass()
    assert agents[0].visits == visits + 1

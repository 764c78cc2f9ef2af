"""A connection that is cut at a COMMIT: nobody knows then whether it was carried out, and nothing is done twice."""

from collections.abc import Iterator

import pytest

from muster.core.model.session import SessionState
from muster.core.values.errors import OutcomeUnknownError
from muster.service.queue.worker import QueueWorker
from muster.store.database import settling
from muster.store.sessions.submissions import Submission, SubmittedBeforeError
from tests.command_line import muster, write_settings
from tests.contract.postgresql_proxy import Cut, PostgresqlProxy, postgresql_proxy
from tests.simulated.control_node import ControlNode, an_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

SUBMIT = "INSERT INTO sessions"


@pytest.fixture
def proxy(server, postgresql_url, migrated_database, tmp_path, monkeypatch) -> Iterator[PostgresqlProxy]:
    """Yield a proxy before the server of `postgresql_url`. The command line goes through it."""
    del postgresql_url
    with postgresql_proxy(server.port) as running:
        config = write_settings(tmp_path, {"database": running.url(migrated_database)})
        monkeypatch.setenv("MUSTER_CONFIG", str(config))
        yield running


@pytest.mark.parametrize("when", Cut)
def test_a_submit_whose_answer_is_lost_queues_its_sessions_once(proxy, postgresql_url, open_store, when):
    proxy.cut_next_commit_after(SUBMIT, when)
    submitted = muster("submit", "--count", "2", "--quiet", "--", "true")
    assert proxy.cut_commits == 1
    assert (submitted.code, submitted.err) == (0, "")
    queued = open_store(postgresql_url).search()
    assert submitted.out.split() == [session.id for session in queued]
    assert len(queued) == 2


@pytest.mark.parametrize("when", Cut)
def test_the_key_of_a_submit_whose_answer_is_lost_is_used(proxy, migrated_database, open_store, when):
    store = open_store(proxy.url(migrated_database))
    submission = Submission("ada", "key", "hash", NOW)
    proxy.cut_next_commit_after(SUBMIT, when)
    store.add([make_session(1)], submission)
    with pytest.raises(SubmittedBeforeError) as repeated:
        store.add([make_session(2)], submission)
    assert repeated.value.session_ids == (make_session(1).id,)


def test_who_cannot_learn_whether_they_have_submitted_is_told_so(proxy, postgresql_url, open_store, monkeypatch):
    monkeypatch.setattr(settling, "_PATIENCE_S", 0.0)
    proxy.cut_next_commit_after(SUBMIT, Cut.AFTER, stays_away=True)
    submitted = muster("submit", "--", "true")
    assert submitted.code == 1
    (line,) = submitted.errors
    assert "may have been made all the same: look before you try again" in line
    assert len(open_store(postgresql_url).search()) == 1


def test_sessions_that_are_queued_are_announced_although_the_database_is_away_by_then(
    proxy, postgresql_url, open_store
):
    proxy.cut_next_commit_after(SUBMIT, Cut.ANSWERED, stays_away=True)
    submitted = muster("submit", "--quiet", "--", "true")
    assert (submitted.code, submitted.errors) == (0, [])
    assert submitted.out.split() == [session.id for session in open_store(postgresql_url).search()]


@pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
def test_a_change_whose_answer_is_lost_is_said_to_be_uncertain(proxy, postgresql_url, open_store, when):
    store = open_store(postgresql_url)
    store.add([make_session(1)])
    proxy.cut_next_commit_after("UPDATE sessions", when)
    held = muster("hold", "s1")
    assert held.code == 1
    (line,) = held.errors
    assert "may have been made all the same: look before you try again" in line
    assert (store.find("s1").held_by is not None) is (when is Cut.AFTER)
    assert muster("hold", "s1").code == 0


@pytest.mark.parametrize("when", Cut)
def test_a_restore_whose_answer_is_lost_replaces_database_and_keys(proxy, postgresql_url, open_store, tmp_path, when):
    store = open_store(postgresql_url)
    store.add([make_session(1)])
    key = tmp_path / "state" / "id_ed25519"
    key.parent.mkdir(mode=0o700)
    key.write_text("of the backup")
    assert muster("backup", str(tmp_path / "b")).code == 0
    key.write_text("later")
    store.add([make_session(2)])
    store.close()
    proxy.cut_next_commit_after("DROP TABLE", when)
    restored = muster("restore", "--force", str(tmp_path / "b"))
    assert proxy.cut_commits == 1
    assert (restored.code, restored.err) == (0, "")
    assert [session.name for session in open_store(postgresql_url).search()] == ["s1"]
    assert key.read_text() == "of the backup"


def test_a_restore_that_loses_its_server_for_good_says_that_it_may_be_done(proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(settling, "_PATIENCE_S", 0.0)
    assert muster("backup", str(tmp_path / "b")).code == 0
    proxy.cut_next_commit_after("DROP TABLE", Cut.AFTER, stays_away=True)
    restored = muster("restore", "--force", str(tmp_path / "b"))
    assert restored.code == 1
    (line,) = restored.errors
    assert "psql failed: server closed the connection unexpectedly; it is not known whether" in line


@pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
def test_a_launch_whose_commit_got_no_answer_begins_once(proxy, migrated_database, tmp_path, when):
    """The daemon goes on with what it has read before, and with a worker of its own."""
    agent = an_agent()
    node = ControlNode(tmp_path, agent, url=proxy.url(migrated_database))
    node.run()
    session = node.submit()
    proxy.cut_next_commit_after("UPDATE kernels", when)
    with pytest.raises(OutcomeUnknownError):
        node.run()
    node.worker = QueueWorker(node.shell, node.inbox.put)
    node.run()
    assert node.state(session) is SessionState.RUNNING
    assert node.story(session).count("RUNNING") == 1
    assert len(agent.of_session(session.id)) == 1
    node.store.close()

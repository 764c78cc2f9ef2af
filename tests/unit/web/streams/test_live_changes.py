"""One reader of the store for all subscribers."""

import threading

import pytest

from muster.core.model.token import Scope, Token
from muster.service.sessions.live import LiveChanges
from muster.web.pages import live as pages_live
from muster.web.streams import event_routes
from tests.unit.web.api.test_api import SMALL
from tests.waiting import PATIENCE_S


class Receiver:
    """A handler of changes, and a way to wait for what it receives."""

    def __init__(self) -> None:
        self.received = []
        self.news = threading.Event()
        self.receive = self._receive

    def _receive(self, changes) -> None:
        self.received += changes
        self.news.set()

    def names(self) -> list[str]:
        return [live.session.name for live in self.received]


@pytest.mark.parametrize(
    ("routes", "words"),
    [(event_routes, event_routes._event_for_owner), (pages_live, pages_live._event)],
    ids=["api", "pages"],
)
def test_a_change_is_rendered_once_for_all_subscribers(service, monkeypatch, routes, words):
    worded = []
    in_words = routes.json.dumps

    def counted(sent):
        worded.append(sent)
        return in_words(sent)

    monkeypatch.setattr(routes.json, "dumps", counted)
    live = LiveChanges(service.store)
    receivers = [Receiver() for _ in range(3)]
    for receiver in receivers:
        live.add(receiver.receive, None)
    service.service.commands.submit({**SMALL, "name": "train"}, "ada")
    with live.running():
        assert all(receiver.news.wait(PATIENCE_S) for receiver in receivers)
    worded.clear()
    sent = {words(change) for receiver in receivers for change in receiver.received}
    assert len(sent) == 1
    assert receivers[0].received[0].change.session_id in sent.pop()
    assert len(worded) == 1


def test_who_comes_back_gets_what_they_missed_behind_any_number_of_others_changes(service, monkeypatch):
    monkeypatch.setattr("muster.service.sessions.live._MOST_AT_ONCE", 3)
    live = LiveChanges(service.store)
    last_seen = service.store.last_event()
    for number in range(4):
        service.service.commands.submit({**SMALL, "name": f"eves-{number}"}, "eve")
    service.service.commands.submit({**SMALL, "name": "mine"}, "ada")
    ada, root = (Token(user, user, scope, 0.0) for user, scope in (("ada", Scope.USER), ("root", Scope.ADMIN)))

    def missed(token):
        return [change.session.name for change in live.after(last_seen, service.store.last_event(), token)]

    assert missed(ada) == ["mine"]
    assert missed(root) == ["eves-0", "eves-1", "eves-2"]


def test_two_changes_of_one_session_are_put_into_words_apart(service):
    live = LiveChanges(service.store)
    receiver = Receiver()
    live.add(receiver.receive, None)
    service.service.commands.submit({**SMALL, "name": "train"}, "ada")
    service.service.commands.terminate(["train"], "ada")
    with live.running():
        assert receiver.news.wait(PATIENCE_S)
    assert [change.change.to_state for change in receiver.received] == ["PENDING", "CANCELLED"]
    assert len(set(map(event_routes._event_for_owner, receiver.received))) == 2


def test_a_subscriber_added_during_a_read_gets_no_earlier_change(service, monkeypatch):
    live = LiveChanges(service.store)
    first, second = Receiver(), Receiver()
    live.add(first.receive, None)
    service.service.commands.submit({**SMALL, "name": "early"}, "ada")
    changes = service.store.changes
    read = changes.after
    since = []

    def while_it_reads(number, limit):
        found = read(number, limit)
        if found and not since:
            # Neither handler waits for the reader.
            live.remove(first.receive)
            service.service.commands.submit({**SMALL, "name": "meanwhile"}, "ada")
            since.append(live.add(second.receive, None))
            service.service.commands.submit({**SMALL, "name": "late"}, "ada")
        return found

    monkeypatch.setattr(changes, "after", while_it_reads)
    with live.running():
        assert second.news.wait(PATIENCE_S)
    assert first.names() == []
    assert second.names() == ["late"]
    assert second.received[0].change.id == since[0] + 1

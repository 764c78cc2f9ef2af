"""One reader of the store for all subscribers."""

import threading

import pytest

from muster.service.sessions.live import LiveChanges
from muster.web.pages import live as pages_live
from muster.web.streams import event_routes
from tests.unit.web.api.test_api import SMALL


class Ear:
    """A listener, and a way to wait for what it hears."""

    def __init__(self) -> None:
        self.heard = []
        self.news = threading.Event()
        self.hear = self._hear

    def _hear(self, changes) -> None:
        self.heard += changes
        self.news.set()

    def names(self) -> list[str]:
        return [live.session.name for live in self.heard]


@pytest.mark.parametrize(
    ("routes", "words"),
    [(event_routes, event_routes._event_for_owner), (pages_live, pages_live._event)],
    ids=["api", "pages"],
)
def test_a_change_is_rendered_once_for_all_subscribers(service, monkeypatch, routes, words):
    worded = []
    in_words = routes.json.dumps

    def counted(told):
        worded.append(told)
        return in_words(told)

    monkeypatch.setattr(routes.json, "dumps", counted)
    live = LiveChanges(service.store)
    ears = [Ear() for _ in range(3)]
    for ear in ears:
        live.add(ear.hear, None)
    service.service.commands.submit({**SMALL, "name": "train"}, "ada")
    with live.running():
        assert all(ear.news.wait(30) for ear in ears)
    worded.clear()
    told = {words(change) for ear in ears for change in ear.heard}
    assert len(told) == 1
    assert ears[0].heard[0].change.session_id in told.pop()
    assert len(worded) == 1


def test_two_changes_of_one_session_are_put_into_words_apart(service):
    live = LiveChanges(service.store)
    ear = Ear()
    live.add(ear.hear, None)
    service.service.commands.submit({**SMALL, "name": "train"}, "ada")
    service.service.commands.terminate(["train"], "ada")
    with live.running():
        assert ear.news.wait(30)
    assert [change.change.to_state for change in ear.heard] == ["PENDING", "CANCELLED"]
    assert len(set(map(event_routes._event_for_owner, ear.heard))) == 2


def test_a_subscriber_added_during_a_read_gets_no_earlier_change(service, monkeypatch):
    live = LiveChanges(service.store)
    first, second = Ear(), Ear()
    live.add(first.hear, None)
    service.service.commands.submit({**SMALL, "name": "early"}, "ada")
    changes = service.store.changes
    read = changes.after
    since = []

    def while_it_reads(number, limit):
        found = read(number, limit)
        if found and not since:
            # Neither handler waits for the reader.
            live.remove(first.hear)
            service.service.commands.submit({**SMALL, "name": "meanwhile"}, "ada")
            since.append(live.add(second.hear, None))
            service.service.commands.submit({**SMALL, "name": "late"}, "ada")
        return found

    monkeypatch.setattr(changes, "after", while_it_reads)
    with live.running():
        assert second.news.wait(30)
    assert first.names() == []
    assert second.names() == ["late"]
    assert second.heard[0].change.id == since[0] + 1

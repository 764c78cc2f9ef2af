"""What refreshes itself is made once for a user's pages, and holds nothing of one browser."""

import pytest

from muster.core.model.token import Scope
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session

LIVE = {"HX-Request": "true"}
PAGES = ("/overview", "/queue", "/sessions", "/sessions?show=all&page=1")


@pytest.fixture(autouse=True)
def sessions(service):
    service.store.agents.save([make_agent("a1")])
    service.store.add([make_session(number, owner=owner) for number, owner in ((1, "ada"), (2, "bob"))])


@pytest.mark.parametrize("path", PAGES)
def test_the_live_part_is_shared_by_browsers_of_a_user_and_by_no_others(app, browser, monkeypatch, path):
    keys = []
    share = app.state.live_parts.result

    def noted(key, work):
        keys.append(key)
        return share(key, work)

    monkeypatch.setattr(app.state.live_parts, "result", noted)
    ada, again = browser("ada"), browser("ada", name="phone")
    bob, reader, root = browser("bob"), browser("ada", Scope.READ), browser("root", Scope.ADMIN)
    parts = [one.get(path, headers=LIVE).text for one in (ada, again, bob, reader, root)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert all("csrf" not in part for part in parts)
    assert 'name="csrf"' in ada.get(path).text or path == "/overview"
    # A page that is opened is nobody else's.
    assert len(keys) == 5


def test_each_user_sees_their_own_in_it(browser):
    assert "s2" not in browser("ada").get("/sessions", headers=LIVE).text
    assert "s1" not in browser("bob").get("/sessions", headers=LIVE).text
    assert "s2" in browser("root", Scope.ADMIN).get("/sessions", headers=LIVE).text

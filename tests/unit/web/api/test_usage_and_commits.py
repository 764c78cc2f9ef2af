"""What was used, what is being used, and images of running kernels by the API."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from muster.core.model.session import SessionState
from muster.core.model.token import Scope
from muster.core.values.errors import AgentUnreachableError, ImageError
from muster.engine.commit import Made
from muster.service.images import commits, owned, removal
from muster.service.images.claims import Claim
from muster.service.images.commits_under_way import CommitsUnderWay
from muster.service.images.views import CommitView
from muster.service.usage import samples
from muster.service.usage.live import CurrentUsage
from muster.service.usage.views import ReportView
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.waiting import PATIENCE_S, eventually

HOUR = 3600.0
IMAGE = "ada/train:2"


@pytest.fixture
def running(service):
    """Puts a session into the store that has run for an hour on agent a1."""
    service.store.agents.save([make_agent("a1")])

    def put(number, owner, project="default"):
        made = placed_on(make_session(number, name=f"of-{owner}", project=project), "a1", state=SessionState.RUNNING)
        now = time.time()
        made = replace(made, owner=owner, submitted_at=now - HOUR - 60, started_at=now - HOUR)
        service.store.add([made])
        return made

    return put


def test_a_user_sees_their_own_usage_and_an_administrator_that_of_all(caller, running):
    running(1, "ada", "vision")
    running(2, "eve")
    ada, root = caller("ada"), caller("root", Scope.ADMIN)
    report = ReportView.model_validate(ada.get("/api/v1/report").json())
    assert (report.by, [line.user for line in report.lines]) == (["user"], ["ada"])
    assert report.lines[0].sessions == 1
    assert report.lines[0].cpu_hours_allocated > 0
    for query in ({"user": "eve"}, {"project": "default"}, {"user": ["eve"], "by": "session"}):
        assert ada.get("/api/v1/report", params=query).json()["lines"] == []
    assert [line["user"] for line in ada.get("/api/v1/report", params={"user": ["ada", "eve"]}).json()["lines"]] == [
        "ada"
    ]
    assert [line["user"] for line in root.get("/api/v1/report").json()["lines"]] == ["ada", "eve"]
    pairs = root.get("/api/v1/report", params={"by": ["project", "user"], "since": "30m"}).json()
    assert [(line["project"], line["user"]) for line in pairs["lines"]] == [("default", "eve"), ("vision", "ada")]
    assert pairs["lines"][0]["cpu_hours_allocated"] < report.lines[0].cpu_hours_allocated


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"by": "colour"}, "by: there is no key 'colour'; use user, project, day, session"),
        ({"since": "long ago"}, "since: "),
        ({"since": "1d", "until": "2d"}, "until: it is not after since"),
        ({"since": "2026-11-01T00:00", "until": ""}, "until: "),
    ],
)
def test_an_invalid_time_or_key_is_refused_by_name(caller, query, words):
    answer = caller("ada").get("/api/v1/report", params=query)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(words)


@pytest.fixture
def measured(monkeypatch):
    """Let agents answer at once. Return the sessions of the requests."""

    class Uses:
        def __init__(self, sessions, agents, interval_s):
            del agents, interval_s
            self.sessions = sessions

        def start(self):
            pass

        def stop(self):
            stopped.append([session.name for session in self.sessions])

        def all(self, timeout_s, *, rounds=1):
            del timeout_s, rounds
            return [CurrentUsage(s, s.main, problem="agent a1 does not answer") for s in self.sessions]

    stopped = []
    monkeypatch.setattr(samples, "UsagePoller", Uses)
    return stopped


def test_a_look_is_at_ones_own_sessions(caller, running, measured):
    running(1, "ada")
    hers = running(2, "eve")
    ada = caller("ada")
    (now,) = ada.get("/api/v1/use").json()["items"]
    assert (now["session"], now["kernel"], now["problem"]) == ("of-ada", "main1", "agent a1 does not answer")
    assert measured == [["of-ada"]]
    for reference in ("of-eve", hers.id):
        assert ada.get("/api/v1/use", params={"session": reference}).status_code == 404
    seen = caller("root", Scope.ADMIN).get("/api/v1/use").json()["items"]
    assert [now["session"] for now in seen] == ["of-ada", "of-eve"]


class Engine:
    """An engine whose commits go on until they are let."""

    def __init__(self):
        self.goes_on = threading.Event()
        self.error = None

    def commit(self, agent, kernel, new, most_bytes, spool, progressed):
        del agent, kernel, new, most_bytes, spool
        progressed(50, 200)
        assert self.goes_on.wait(PATIENCE_S)
        if self.error:
            raise self.error
        return Made("sha256:" + "1" * 64, 200)


@pytest.fixture
def engine(monkeypatch):
    made = Engine()
    monkeypatch.setattr(commits, "commit", made.commit)
    monkeypatch.setattr(commits, "parent_id", lambda _agent, _kernel: "sha256:" + "0" * 64)
    yield made
    made.goes_on.set()


def reached(client, state, image=IMAGE):
    seen = eventually(lambda: client.get(f"/api/v1/commits/{image}").json(), lambda view: view["state"] == state)
    return CommitView.model_validate(seen)


def begun(client, session="of-ada", **wanted):
    return client.post(f"/api/v1/sessions/{session}/commit", json={"name": IMAGE, **wanted})


def test_a_commit_is_begun_watched_and_found_in_the_catalog(caller, running, engine):
    session = running(1, "ada")
    ada = caller("ada")
    answer = begun(ada, message="with results")
    assert (answer.status_code, answer.json()["state"]) == (202, "making")
    while reached(ada, "making").done_bytes == 0:
        time.sleep(0.01)
    assert reached(ada, "making").total_bytes == 200
    assert begun(ada).json()["type"] == "urn:muster:name-taken"
    assert ada.get("/api/v1/images/ada/train").status_code == 404
    engine.goes_on.set()
    commit_view = reached(ada, "made")
    assert commit_view.image.session.as_json() == {"id": session.id, "name": "of-ada", "kernel": "main1"}
    (known,) = ada.get("/api/v1/images/ada/train").json()["items"]
    assert known["committed"] == commit_view.image.as_json()
    assert known["committed"]["message"] == "with results"


def test_a_failed_commit_gives_its_reason_and_frees_its_name(caller, running, engine):
    running(1, "ada")
    ada = caller("ada")
    engine.error = ImageError("image ada/train:2 would have 9 GiB", permanent=True)
    engine.goes_on.set()
    begun(ada)
    assert reached(ada, "failed").problem == "image ada/train:2 would have 9 GiB"
    engine.error = None
    assert begun(ada).status_code == 202
    assert reached(ada, "made").problem is None


def test_anothers_session_and_what_is_made_of_it_are_not_there(caller, running, engine):
    running(1, "ada")
    ada, eve, root = caller("ada"), caller("eve"), caller("root", Scope.ADMIN)
    assert begun(eve).status_code == 404
    assert begun(caller("ada", Scope.READ)).status_code == 403
    assert begun(ada).status_code == 202
    for state in ("making", "made"):
        reached(ada, state)
        assert eve.get(f"/api/v1/commits/{IMAGE}").status_code == 404
        assert root.get(f"/api/v1/commits/{IMAGE}").json()["state"] == state
        engine.goes_on.set()
    assert eve.get(f"/api/v1/images/{IMAGE}").status_code == 404


def test_an_administrators_token_of_scope_user_gives_no_administrators_rights_to_images(caller, running, engine):
    """As root may make one for a program."""
    running(1, "ada")
    running(2, "root")
    ada, program, root = caller("ada"), caller("root", Scope.USER), caller("root", Scope.ADMIN)
    engine.goes_on.set()
    begun(ada)
    reached(ada, "made")
    assert root.get(f"/api/v1/images/{IMAGE}").status_code == 200
    assert program.get(f"/api/v1/images/{IMAGE}").status_code == 404
    assert begun(program, "of-root", name="debian:13", public=True).status_code == 422
    assert begun(root, "of-root", name="debian:13", public=True).status_code == 202


def test_whoever_has_scope_admin_sees_everybodys_private_images(caller, running, engine):
    """As of the site's `admin_group`: what an administrator may is their token's, not their name's."""
    running(1, "ada")
    ada, eve, admin = caller("ada"), caller("eve"), caller("carol", Scope.ADMIN)
    engine.goes_on.set()
    begun(ada)
    reached(ada, "made")
    assert admin.get(f"/api/v1/images/{IMAGE}").json()["items"][0]["reference"] == IMAGE
    assert [one["reference"] for one in admin.get("/api/v1/images").json()["items"]] == [IMAGE]
    assert eve.get("/api/v1/images").json()["items"] == []


def test_a_commit_that_another_process_makes_is_still_making(caller, running, engine, service, monkeypatch):
    running(1, "ada")
    ada = caller("ada")
    begun(ada)
    monkeypatch.setattr(service.service, "_under_way", CommitsUnderWay())
    assert reached(ada, "making").total_bytes == 0
    engine.goes_on.set()
    assert reached(ada, "made").image.author == "ada"
    service.store.images.forget(service.store.images.find("ada/train", "2"))
    assert ada.get(f"/api/v1/commits/{IMAGE}").status_code == 404


def removed(client, image=IMAGE):
    return client.delete(f"/api/v1/images/{image}")


def made(client, engine, **wanted):
    begun(client, **wanted)
    engine.goes_on.set()
    reached(client, "made")


class Removals:
    """Removals by engines: those that were `done`, by agent and image; agents that are `away` do none."""

    def __init__(self):
        self.done = []
        self.away = frozenset()

    def remove(self, agent, image):
        if agent.id in self.away:
            raise AgentUnreachableError(f"agent {agent.id} does not answer")
        self.done.append((agent.id, image))


@pytest.fixture
def removals(monkeypatch):
    made = Removals()
    monkeypatch.setattr(removal, "remove", made.remove)
    return made


def test_an_author_removes_their_image(caller, running, engine, removals):
    running(1, "ada")
    ada = caller("ada")
    made(ada, engine)
    answer = removed(ada)
    assert (answer.status_code, answer.json()) == (200, {"reference": IMAGE, "removed_from": ["a1"], "failed": {}})
    assert removals.done == [("a1", IMAGE)]
    assert ada.get(f"/api/v1/images/{IMAGE}").status_code == 404
    assert removed(ada).status_code == 404


def test_an_image_stays_in_the_catalog_until_all_agents_have_removed_it(caller, running, engine, removals):
    running(1, "ada")
    ada = caller("ada")
    made(ada, engine)
    removals.away = {"a1"}
    assert removed(ada).json()["failed"] == {"a1": "agent a1 does not answer"}
    assert ada.get(f"/api/v1/images/{IMAGE}").status_code == 200
    removals.away = frozenset()
    assert removed(ada).json()["failed"] == {}


def test_only_its_author_and_administrators_remove_an_image(caller, running, engine, removals):
    running(1, "ada")
    ada, eve, reader = caller("ada"), caller("eve"), caller("ada", Scope.READ)

    def is_no_image_to_eve():
        nothing = removed(eve, "ada/nothing:2")
        answer = removed(eve)
        return (answer.status_code, answer.text) == (404, nothing.text.replace("ada/nothing", "ada/train"))

    begun(ada)
    assert is_no_image_to_eve()
    engine.goes_on.set()
    reached(ada, "made")
    assert is_no_image_to_eve()
    assert removed(reader).status_code == 403
    assert removals.done == []
    assert removed(caller("carol", Scope.ADMIN)).status_code == 200
    made(ada, engine, public=True)
    refused = removed(eve)
    assert refused.status_code == 409
    assert refused.json()["detail"] == f"image {IMAGE} is ada's; only its author can remove it"


def test_an_image_that_is_being_made_cannot_be_removed(caller, running, engine):
    running(1, "ada")
    ada = caller("ada")
    begun(ada)
    refused = removed(ada)
    assert refused.status_code == 409
    assert refused.json()["detail"] == "image ada/train:2 is being made; remove it once it is there"
    engine.goes_on.set()
    assert reached(ada, "made").image.author == "ada"


@pytest.mark.parametrize("image", [IMAGE, f"docker.io/{IMAGE}", f"index.docker.io/{IMAGE}"])
def test_an_image_that_a_session_needs_by_whatever_spelling_cannot_be_removed(caller, running, engine, service, image):
    running(1, "ada")
    ada = caller("ada")
    made(ada, engine)

    def refusal_while_used_by(number, name, owner):
        service.store.add([replace(make_session(number, name=name, image=image), owner=owner)])
        refused = removed(ada)
        assert refused.status_code == 409
        return refused.json()["detail"]

    once = "remove it once they have ended"
    # The names of others' sessions are not theirs to know.
    assert refusal_while_used_by(2, "hers", "eve") == f"image {IMAGE} is used by sessions of other users; {once}"
    assert refusal_while_used_by(3, "mine", "ada") == f"image {IMAGE} is used by session mine; {once}"


def test_an_image_that_is_in_no_catalog_when_it_is_made_does_not_stay_on_its_agent(
    caller, running, engine, service, monkeypatch
):
    removed = []
    monkeypatch.setattr(commits, "remove", lambda agent, image: removed.append((agent.id, image)))
    running(1, "ada")
    ada = caller("ada")
    begun(ada)
    service.store.images.forget(service.store.images.find("ada/train", "2"))
    engine.goes_on.set()
    assert reached(ada, "failed").problem.startswith("image ada/train:2: it was removed while it was made")
    assert removed == [("a1", "sha256:" + "1" * 64)]
    assert ada.get(f"/api/v1/images/{IMAGE}").status_code == 404


@pytest.fixture
def interrupted(caller, running, engine, service):
    """Return ada, the maker of whose image was killed between its agent and the catalog, ten minutes ago."""
    running(1, "ada")
    ada = caller("ada")
    begun(ada)
    engine.goes_on.set()
    reached(ada, "made")
    known = service.store.images.find("ada/train", "2")
    service.store.images.forget(known)
    service.store.images.claim(replace(known, image_id="", created_at=known.created_at - 600))
    held = [{"id": "sha256:" + "1" * 64, "tags": [IMAGE], "size_bytes": 1}]
    service.store.agents.save([reporting(make_agent("a1"), images=held)])
    return ada


def test_a_commit_that_was_interrupted_at_its_end_can_be_made_again(interrupted, monkeypatch):
    removed = []
    monkeypatch.setattr(commits, "remove", lambda agent, image: removed.append((agent.id, image)))
    assert reached(interrupted, "failed").problem == "it was interrupted; commit it again"
    assert begun(interrupted).status_code == 202
    assert reached(interrupted, "made").image.author == "ada"
    assert removed == [("a1", IMAGE)]


def test_what_an_interrupted_commit_left_on_another_agent_is_named_as_such(interrupted, service):
    service.store.agents.save([make_agent("a2")])
    elsewhere = placed_on(make_session(2, name="elsewhere"), "a2", state=SessionState.RUNNING)
    service.store.add([replace(elsewhere, owner="ada")])
    answer = begun(interrupted, "elsewhere")
    assert answer.status_code == 409
    assert "agent a1 holds what an interrupted commit left of ada/train:2" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("wanted", "status", "words"),
    [
        ({"name": "NoTag"}, 422, "name: 'NoTag' has no tag"),
        ({"message": "two\nlines"}, 422, "message: it holds a line break"),
        ({"kernel": "sub9"}, 404, "session of-ada has no container 'sub9'"),
    ],
)
def test_a_commit_that_cannot_be_is_refused_at_once(caller, running, engine, wanted, status, words):
    del engine
    running(1, "ada")
    answer = begun(caller("ada"), **wanted)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(words)


def test_one_users_images_do_not_delay_others(caller, running, engine):
    running(1, "ada")
    running(2, "eve")
    ada = caller("ada")
    assert [begun(ada, name=f"ada/many:{number}").status_code for number in range(9)] == [202] * 8 + [409]
    assert begun(caller("eve"), "of-eve", name="eve/train:2").status_code == 202
    engine.goes_on.set()
    reached(caller("root", Scope.ADMIN), "made", "eve/train:2")
    assert begun(ada, name="ada/many:9").status_code == 202


def test_commits_that_are_asked_for_at_the_same_moment_are_limited_too(caller, running, engine, service, monkeypatch):
    class SlowClaim(Claim):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            claimed.wait(PATIENCE_S)

    claimed = threading.Barrier(10)
    monkeypatch.setattr(owned, "Claim", SlowClaim)
    running(1, "ada")
    ada = caller("ada")
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda number: begun(ada, name=f"ada/many:{number}").status_code, range(10)))
    assert sorted(answers) == [202] * 8 + [409] * 2
    engine.goes_on.set()
    refused = [number for number, status in enumerate(answers) if status == 409]
    assert not any(service.store.images.find("ada/many", str(number)) for number in refused)

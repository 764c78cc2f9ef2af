"""A session's page: its content and its actions, by user."""

import gzip
import html
import json
import re
from dataclasses import replace

import pytest

from muster.core.images.committed import CommittedImage
from muster.core.model.session import Allocation, GpuShare, KernelLog, LaunchStep, Result, SessionState
from muster.core.model.token import Scope
from muster.core.model.wait import Wait, WaitCode
from muster.core.values.errors import NameTakenError
from muster.engine.container_usage import ContainerUsage
from muster.service.images.commits_under_way import CommitState
from muster.service.images.owned import OwnedImages
from muster.service.images.views import CommitView
from muster.service.usage.live import CurrentUsage
from muster.service.usage.watched import KernelUsageHistory, Sample, SessionUsage
from tests.reports import kernel_entry
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import new_id
from tests.unit.web.api.test_api import SESSIONS, SMALL, submitted

HTMX = {"HX-Request": "true"}
NASTY = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
PARTS = ["", "/use", "/more", "/what-if", "/rename", "/commit", "/commit/state?name=a:1"]


class Watched:
    """A hub that knows of every kernel the same."""

    use = SessionUsage()

    def of(self, _session, _token):
        return self.use

    def close(self):
        pass


@pytest.fixture(autouse=True)
def watched(app):
    app.state.watched = Watched()
    return app.state.watched


@pytest.fixture
def add(service):
    """Puts a session into the store as it is."""

    def put(session):
        service.store.add([session])
        return session

    return put


def in_state(number, state, **values):
    made = placed_on(make_session(number, name=f"s{number}", cluster_size=2), "a1", state=state)
    running = state in {SessionState.RUNNING, SessionState.TERMINATING}
    kernels = tuple(
        replace(k, container_state="running" if running else None, container_id=k.name) for k in made.kernels
    )
    return replace(made, kernels=kernels, **values)


def offered(text):
    return set(re.findall(r'id="do-([a-z]+)"', text))


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (make_session(1), {"cancel", "hold", "update", "rename"}),
        (make_session(2, held_by="ada"), {"cancel", "release", "update", "rename"}),
        (in_state(3, SessionState.SCHEDULED), {"terminate", "rename"}),
        (in_state(4, SessionState.PREPARING), {"terminate", "rename"}),
        (in_state(5, SessionState.RUNNING), {"terminate", "restart", "rename", "commit"}),
        (
            in_state(11, SessionState.RUNNING, spec=make_session(11, time_limit="1h").spec),
            {"terminate", "restart", "rename", "commit", "extend"},
        ),
        (in_state(6, SessionState.TERMINATING), set()),
        (in_state(7, SessionState.TERMINATING, step=LaunchStep.RESTARTING), {"terminate"}),
        (in_state(8, SessionState.TERMINATED, result=Result.SUCCESS, exit_code=0), set()),
        (make_session(9, state=SessionState.CANCELLED), set()),
        (make_session(10, state=SessionState.ERROR), set()),
    ],
    ids=lambda value: value.state if hasattr(value, "state") else "",
)
def test_only_actions_that_state_and_token_allow_are_offered(browser, add, session, expected):
    add(session)
    path = f"/sessions/{session.id}"
    page = browser("ada").get(path)
    assert page.status_code == 200
    assert offered(page.text) == expected
    assert f'data-state="{session.state}"' in page.text
    assert f"/launch?from={session.id}" in page.text
    reader = browser("ada", Scope.READ).get(path).text
    assert offered(reader) == set()
    assert "/launch?from" not in reader
    assert "/terminal?" not in reader
    assert ("/terminal?kernel=main1" in page.text) == (session.state is SessionState.RUNNING)
    has_log = session.state in {SessionState.RUNNING, SessionState.TERMINATING, SessionState.TERMINATED}
    assert ("/kernels/main1/log-dialog" in page.text) == (has_log and session.generation > 0)


def test_a_name_or_the_start_of_an_id_leads_to_the_id(browser, add):
    session = add(make_session(1))
    ada = browser("ada")
    for reference in ("s1", session.id[:8]):
        sent = ada.get(f"/sessions/{reference}", follow_redirects=False)
        assert (sent.status_code, sent.headers["location"]) == (303, f"/sessions/{session.id}")


@pytest.mark.parametrize("part", PARTS)
def test_another_users_session_is_not_there(browser, caller, part):
    hers = submitted(caller("eve"), name="private-work", env={"PASSWORD": "hush-hush"})
    ada = browser("ada")
    for reference in (hers["id"], "private-work"):
        answer = ada.get(f"/sessions/{reference}{part}")
        assert answer.status_code == 404
        assert "there is no session" in answer.text
        assert "hush-hush" not in answer.text


@pytest.mark.parametrize("action", ["terminate", "cancel", "hold", "release", "restart", "rename", "commit"])
def test_another_users_session_is_not_changed_nor_ones_own_by_a_reader_or_another_site(browser, caller, action):
    hers = submitted(caller("eve"), name="hers")["id"]
    mine = submitted(caller("ada"), name="mine")["id"]
    form = {"name": "other"}
    assert browser("ada").post(f"/sessions/{hers}/{action}", data=form).status_code == 404
    assert browser("ada", Scope.READ).post(f"/sessions/{mine}/{action}", data=form).status_code == 403
    ada = browser("ada", name="third")
    for headers in ({"X-CSRF-Token": "0" * 64}, {"Origin": "https://evil.example"}):
        assert ada.post(f"/sessions/{mine}/{action}", data=form, headers=headers).status_code == 403
    listed = caller("root", Scope.ADMIN).get(SESSIONS).json()["items"]
    assert {(one["name"], one["state"], one["held_by"]) for one in listed} == {
        ("hers", "PENDING", None),
        ("mine", "PENDING", None),
    }


def test_the_state_changes_by_its_buttons_and_the_audit_log_names_it(browser, caller, service):
    key = submitted(caller("ada"), name="mine")["id"]
    ada = browser("ada")
    steps = [("hold", "mine is held"), ("release", "mine is released"), ("cancel", "mine is cancelled")]
    for action, said in steps:
        done = ada.post(f"/sessions/{key}/{action}", headers=HTMX)
        assert (done.status_code, done.headers["hx-trigger"]) == (204, f'{{"muster:announce": "{said}"}}')
    assert service.store.find(key).state is SessionState.CANCELLED
    refused = ada.post(f"/sessions/{key}/hold", headers=HTMX)
    assert (refused.status_code, refused.headers["hx-retarget"]) == (409, "#problem")
    assert "only a PENDING session can be held" in refused.text
    assert ada.post(f"/sessions/{key}/explode", headers=HTMX).status_code == 422
    assert (service.settings.state_dir / "audit.log").read_text().count(key) >= len(steps)


def test_an_action_means_the_session_and_not_the_array_of_its_name(browser, caller, service):
    ada = caller("ada")
    answer = ada.post(SESSIONS, json={**SMALL, "name": "sweep", "array": "0-2"})
    keys = [one["id"] for one in answer.json()["items"]]
    page = browser("ada")
    page.post(f"/sessions/{keys[0]}/cancel", headers=HTMX)
    states = [service.store.get(keys)[key].state for key in keys]
    assert states == [SessionState.CANCELLED, SessionState.PENDING, SessionState.PENDING]
    assert "do-rename" not in page.get(f"/sessions/{keys[1]}").text


def test_renaming_says_in_its_dialog_what_is_wrong(browser, caller):
    ada = caller("ada")
    key = submitted(ada, name="mine")["id"]
    submitted(ada, name="taken")
    page = browser("ada")
    assert 'value="mine"' in page.get(f"/sessions/{key}/rename", headers=HTMX).text
    for name, said in (("taken", "already called taken"), (NASTY, "is not a session name")):
        refused = page.post(f"/sessions/{key}/rename", data={"name": name}, headers=HTMX)
        assert 'id="new-name-problem"' in refused.text
        assert said in html.unescape(refused.text)
        assert f'value="{html.escape(name)}"'.replace("&quot;", "&#34;") in refused.text
    done = page.post(f"/sessions/{key}/rename", data={"name": "better"}, headers=HTMX)
    assert done.headers["hx-redirect"] == f"/sessions/{key}"
    assert ada.get(f"{SESSIONS}/{key}").json()["name"] == "better"
    assert page.post(f"/sessions/{key}/rename", data={"name": "taken"}).status_code == 409


def test_a_dialogs_button_is_off_while_its_request_is_answered(browser, add):
    """A second press would be sent as well, and add the time twice: tests/e2e presses it."""
    mine = add(placed_on(make_session(1, time_limit="1h"), "a1", state=SessionState.RUNNING))
    page = browser("ada")
    for action in ("rename", "extend", "commit"):
        dialog = page.get(f"/sessions/{mine.id}/{action}", headers=HTMX).text
        (form,) = re.findall(r"<form[^>]*>", dialog)
        assert 'hx-disabled-elt="find .primary"' in form
        assert dialog.count('class="primary"') == 1


def test_what_a_dialog_refuses_is_in_the_audit_log_as_refused(browser, add, service):
    taken = add(make_session(2, name="taken"))
    mine = add(replace(in_state(1, SessionState.RUNNING), name="mine"))
    page = browser("ada")
    requests = {"rename": {"name": taken.name}, "extend": {"time": "soon"}, "commit": {"name": "no tag"}}
    for action, data in requests.items():
        page.post(f"/sessions/{mine.id}/{action}", data=data, headers=HTMX)
    lines = [json.loads(line) for line in (service.settings.state_dir / "audit.log").read_text().splitlines()]
    assert [(line["path"].rpartition("/")[2], line["status"]) for line in lines[-3:]] == [
        ("rename", 409),
        ("extend", 422),
        ("commit", 422),
    ]


def test_users_texts_are_shown_as_text(browser, add, watched, service):
    service.store.agents.save([make_agent("a1")])
    made = make_session(
        1, command=NASTY, env={"EVIL": NASTY}, project=NASTY, image="busybox", bootstrap=NASTY, labels={"x": NASTY}
    )
    made = placed_on(made, "a1")
    kernels = tuple(replace(k, gpu_problem=NASTY, container_state="running", image=NASTY) for k in made.kernels)
    session = add(replace(made, kernels=kernels, reason=NASTY, notice=NASTY))
    watched.use = SessionUsage(
        {k.id: KernelUsageHistory(CurrentUsage(session, k, problem=NASTY), ()) for k in kernels}, NASTY
    )
    page = browser("ada").get(f"/sessions/{session.id}").text
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;alert") >= 8
    assert not re.search(r"<script(?![^>]*\bsrc=)|<[^>]*\son\w+=|<[^>]*\sstyle=", page)


def test_secrets_are_named_and_the_environment_is_shown_to_users_of_the_session(browser, caller, service):
    service.secrets.set("ada", "api-key", "top-secret-value", 0.0)
    key = submitted(caller("ada"), name="mine", env={"BATCH": "sixty-four"}, secrets=["api-key=API_KEY"])["id"]
    for page in (browser("ada"), browser("root", Scope.ADMIN)):
        text = page.get(f"/sessions/{key}").text
        assert "sixty-four" in text
        assert "api-key" in text
        assert "top-secret-value" not in text


def test_the_page_shows_the_spec_as_a_file_and_as_a_command_line(browser, caller, service):
    key = submitted(caller("ada"), name="mine", cpu=0.5, command="echo 'a b'")["id"]
    text = html.unescape(browser("ada").get(f"/sessions/{key}").text)
    assert "cpu: 0.5" in text
    assert "muster submit" in text
    assert "--cpu 0.5" in text
    assert service.store.find(key).spec.ssh_keys[0] not in text


def test_the_page_says_why_it_waits_and_what_would_help_without_naming_others(browser, service, add):
    service.store.agents.save([make_agent("a1", cpus=2, mem_bytes=4 << 30)])
    hers = placed_on(make_session(1, name="secret-project", cpu=2), "a1")
    add(replace(hers, owner="eve"))
    message = "session secret-project of eve is ahead"
    wait = Wait(WaitCode.BEHIND, message, waits_for=(new_id(1),), exhausted={"cpu": 1}, agents_considered=1)
    mine = make_session(2, name="mine", cpu=2, wait=wait)
    service.store.add([mine])
    service.store.save_waits({mine.id: wait})
    page = browser("ada")
    text = page.get(f"/sessions/{mine.id}").text
    assert "another user&#39;s session is ahead of it" in text
    assert "Why it waits" in text
    assert "place in the queue of group default: 1" in text
    helped = page.get(f"/sessions/{mine.id}/what-if", headers=HTMX).text
    assert "another user&#39;s session ends" in helped
    for words_shown in (text, helped):
        assert "secret-project" not in words_shown
        assert "eve" not in re.sub(r"[a-z]eve|eve[a-z]", "", words_shown)
    admin = browser("root", Scope.ADMIN)
    assert "secret-project" in admin.get(f"/sessions/{mine.id}").text
    assert "session secret-project of eve ends" in admin.get(f"/sessions/{mine.id}/what-if", headers=HTMX).text


def test_a_sessions_usage_is_in_its_containers_row(browser, add, watched, service):
    service.store.agents.save([make_agent("a1")])
    session = add(in_state(1, SessionState.RUNNING))
    ada = browser("ada")
    assert ada.get(f"/sessions/{session.id}/use").text.count("measuring") == 4
    use = ContainerUsage(0.75, 300 << 20, None, 10, 10, 3)
    now = CurrentUsage(session, session.main, use, net_rx_per_s=2048, net_tx_per_s=0, gpu_percent=40.0)
    samples = (Sample(100.0, None, None), Sample(102.0, 0.5, 200 << 20), Sample(104.0, 0.75, 300 << 20))
    gone = CurrentUsage(session, session.kernels[1], problem="agent a1 does not answer")
    watched.use = SessionUsage(
        {session.id: KernelUsageHistory(now, samples), session.kernels[1].id: KernelUsageHistory(gone, samples)}
    )
    text = ada.get(f"/sessions/{session.id}/use").text
    assert "<html" not in text
    main, sub = re.findall(r'<tr id="kernel-.*?</tr>', text, re.DOTALL)
    for words_shown in ("0.75 of 1", "300 MiB of 1 GiB", "2 KiB/s in, 0 B/s out", "40 %", 'role="img"'):
        assert words_shown in main
    assert "agent a1 does not answer" in sub
    assert "measuring" not in sub


def test_a_container_tells_which_part_of_which_gpu_it_has(browser, add, service):
    agent = make_agent("a1", gpus=1, units_per_gpu=2)
    service.store.agents.save([agent])
    session = placed_on(make_session(1, fgpu=0.5), "a1")
    share = Allocation("a1", (GpuShare(agent.gpus[0].uuid, 500, whole=False),))
    kernel = replace(session.main, allocation=share, container_state="exited", exit_code=137, oom_killed=True)
    add(replace(session, kernels=(kernel,)))
    text = browser("ada").get(f"/sessions/{session.id}/use").text
    assert "GPU 0: 0.5 fGPU, 256 MiB of memory" in text
    assert "exited, exit code 137, out of memory" in text
    assert "/terminal?" not in text


def test_a_signal_before_the_end_is_spelled_out(browser, add):
    spec = make_session(1, command="train", time_limit="1h", signal="USR1@120").spec
    session = add(in_state(1, SessionState.RUNNING, spec=spec, signalled_at=60.0))
    text = html.unescape(re.sub(r"<[^>]+>", "", browser("ada").get(f"/sessions/{session.id}").text))
    assert "USR1, 2m before its end, the last one at 1970-01-01 00:01:00" in text
    assert "USR1@120 before" not in text


def test_the_parts_that_are_live_ask_for_themselves(browser, add):
    session = add(in_state(1, SessionState.RUNNING))
    ada = browser("ada")
    page = ada.get(f"/sessions/{session.id}").text
    assert page.count(f'data-live="{session.id}"') == 3
    assert 'data-every="2"' in page
    for address in re.findall(r'data-live=.*?hx-get="([^"]+)"', page):
        part = ada.get(address, headers=HTMX)
        assert part.status_code == 200
        assert "<html" not in part.text
    # An app becomes healthy without a change of its session, and one may come before the page listens.
    (more,) = re.findall(r'<div id="more"[^>]*>', page)
    assert 'data-every="10"' in more
    ended = add(in_state(2, SessionState.TERMINATED))
    # The page has only the banner that all pages have.
    assert re.findall(r'data-every="(\d+)"', ada.get(f"/sessions/{ended.id}").text) == ["60"]


def test_apps_tell_how_they_fare_and_those_that_answer_can_be_opened(app, browser, add, service):
    apps = [{"name": "jupyterlab", "port": 8888, "command": "x"}, {"name": "gone", "port": 9000, "command": "y"}]
    session = placed_on(make_session(1, apps=apps), "a1")
    health = {"jupyterlab": {"healthy": True, "exit_code": None, "problem": ""},
            "gone": {"healthy": False, "exit_code": 127, "problem": "the image lacks its program"}}  # fmt: skip
    entry = kernel_entry(session, "main1", apps=health)
    service.store.agents.save([reporting(make_agent("a1"), kernels=[entry])])
    add(session)
    ada = browser("ada")
    # Without ports for apps, the page shows the command line instead.
    text = ada.get(f"/sessions/{session.id}").text
    assert "/apps/jupyterlab/open" not in text
    assert "muster open s1 jupyterlab" in text
    app.state.app_gateway = True
    text = ada.get(f"/sessions/{session.id}").text
    assert f'action="/sessions/{session.id}/apps/jupyterlab/open" target="_blank"' in text
    assert "muster open s1 jupyterlab" in text
    assert "/apps/gone/open" not in text
    assert "the image lacks its program" in text
    assert "/open" not in browser("ada", Scope.READ).get(f"/sessions/{session.id}").text


def test_the_story_is_shown_in_its_order(browser, caller):
    key = submitted(caller("ada"), name="mine")["id"]
    ada = browser("ada")
    ada.post(f"/sessions/{key}/hold", headers=HTMX)
    ada.post(f"/sessions/{key}/cancel", headers=HTMX)
    story = re.search(r'<ol class="session-story">(.*?)</ol>', ada.get(f"/sessions/{key}").text, re.DOTALL)
    assert re.findall(r'<span class="reason">(.*?)</span>', story[1]) == ["submitted", "held by ada", "ended by ada"]


def image(name, **values):
    made = CommittedImage(name, "1", "ada", public=False, message="", parent="busybox", parent_id="sha256:1",
                          session_id=new_id(1), session_name="s1", kernel_name="sub1", agent_id="a1",
                          architecture="x86_64", created_at=0.0)  # fmt: skip
    return replace(made, **values)


def test_an_image_is_made_in_a_dialog_that_tells_how_far_it_has_come(browser, add, monkeypatch):
    session = add(in_state(1, SessionState.RUNNING))
    ada = browser("ada")
    assert "<option selected>main1</option>" in ada.get(f"/sessions/{session.id}/commit", headers=HTMX).text
    requested = []

    def begin(_self, reference, kernel, name, *, message, public):
        requested.append((reference, kernel, name, message, public))
        if name == "taken:1":
            raise NameTakenError("NAME:TAG: there is an image taken:1 already")
        return CommitView.of(CommitState(name, "ada"))

    monkeypatch.setattr(OwnedImages, "begin_commit", begin)
    form = {"kernel": "sub1", "name": "taken:1", "message": "mine", "public": "true"}
    refused = ada.post(f"/sessions/{session.id}/commit", data=form, headers=HTMX).text
    assert "there is an image taken:1 already" in refused
    assert "<option selected>sub1</option>" in refused
    assert 'value="mine"' in refused
    making = ada.post(f"/sessions/{session.id}/commit", data={**form, "name": "fresh:1"}, headers=HTMX).text
    assert requested[-1] == (session.id, "sub1", "fresh:1", "mine", True)
    address = re.search(r'hx-get="([^"]+)"', making)[1]
    states = iter([
        CommitView.of(CommitState("fresh:1", "ada", 50 << 20, 200 << 20)),
        CommitView.of(CommitState("fresh:1", "ada", image=image("fresh", image_id="sha256:2", size_bytes=200 << 20))),
        CommitView.of(CommitState("fresh:1", "ada", problem="it is larger than this site allows")),
    ])  # fmt: skip
    monkeypatch.setattr(OwnedImages, "commit_state", lambda _self, _name: next(states))
    assert "50 MiB of 200 MiB" in ada.get(address, headers=HTMX).text
    made = ada.get(address, headers=HTMX).text
    assert "200 MiB, on agent a1" in made
    assert "hx-trigger" not in made
    assert "it is larger than this site allows" in ada.get(address, headers=HTMX).text


def test_a_session_that_does_not_run_is_made_no_image_of(browser, caller):
    key = submitted(caller("ada"), name="mine")["id"]
    refused = browser("ada").get(f"/sessions/{key}/commit", headers=HTMX)
    assert refused.status_code == 409
    assert "only a RUNNING session" in refused.text


def failed_session(service, logs, **values):
    """Store a session of two containers that failed, with the `exits` of main1 and sub1."""
    session = in_state(9, SessionState.TERMINATED, result=Result.FAILURE, generation=1, owner="ada")
    exits = values.pop("exits")
    kernels = tuple(replace(k, exit_code=code) for k, code in zip(session.kernels, exits, strict=True))
    service.store.add([replace(session, kernels=kernels, **values)])
    for name, text in logs.items():
        service.store.keep_logs([KernelLog(session.id, name, gzip.compress(text))])
    return session


def test_a_failed_session_shows_the_end_of_the_logs_and_the_exit_code_of_what_failed(browser, service):
    lines = b"".join(b"line %d\n" % number for number in range(100))
    logs = {"main1": b"all is well", "sub1": lines + b"\x1b[31mTraceback <b>\x1b[0m\x00\n"}
    session = failed_session(service, logs, exits=(0, 3))
    text = browser("ada").get(f"/sessions/{session.id}").text
    (shown,) = re.findall(r'<pre class="log-tail"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert html.unescape(shown).splitlines() == [f"line {number}" for number in range(81, 100)] + ["Traceback <b>"]
    assert "sub1: <span" in text
    assert "exit code 3" in text
    assert "all is well" not in text
    assert text.count("ended, exit code") == 2


def test_a_progress_bar_is_one_line_of_what_a_failed_session_wrote_last(browser, service):
    bar = b"\r".join(b"%d %%" % percent for percent in range(5000))
    session = failed_session(service, {"main1": b"loading\r\n" + bar + b"\nTraceback\n"}, exits=(1, 0))
    text = browser("ada").get(f"/sessions/{session.id}").text
    (shown,) = re.findall(r'<pre class="log-tail"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert shown.splitlines() == ["loading", "4999 %", "Traceback"]


def test_a_container_that_ended_too_soon_is_shown_as_what_failed(browser, service):
    logs = {"main1": b"all is well", "sub1": b"leaving early"}
    session = failed_session(service, logs, exits=(0, 0), reason="sub1 ended unexpectedly with exit code 0")
    text = browser("ada").get(f"/sessions/{session.id}").text
    assert re.findall(r'<pre class="log-tail"[^>]*>(.*?)</pre>', text, re.DOTALL) == ["leaving early"]


def test_a_failed_session_without_a_log_says_so(browser, service):
    session = failed_session(service, {}, exits=(None, None))
    text = browser("ada").get(f"/sessions/{session.id}").text
    assert "How it failed" in text
    assert "It left no log." in text


@pytest.mark.parametrize("values", [{"result": Result.SUCCESS}, {"generation": 0}])
def test_a_session_that_succeeded_or_never_ran_shows_no_failure(browser, service, values):
    session = failed_session(service, {"main1": b"fine"}, exits=(0, 0), **values)
    assert "How it failed" not in browser("ada").get(f"/sessions/{session.id}").text

"""The launch page: a form that is a session spec, and what becomes of it while it is filled in."""

import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
import yaml

from muster.core.model.folders import Folder
from muster.core.model.token import Scope
from muster.core.spec.session_spec import SessionSpec
from muster.settings import PresetSettings
from muster.web.pages.launch.fields import BESIDE
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW
from tests.unit.web.api.test_api import SESSIONS, submitted

HTMX = {"HX-Request": "true"}


class _Form(HTMLParser):
    """A parser that collects what a browser sends of the launch form."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[str, str]] = []
        self._inside = False
        self._area: str | None = None
        self._select: tuple[str, str | None] | None = None

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "form":
            self._inside = found.get("id") == "launch-form"
        if not self._inside:
            return
        name = found.get("name")
        if tag == "input" and name and (found.get("type") != "checkbox" or "checked" in found):
            self.pairs.append((name, found.get("value") or ("" if found.get("type") != "checkbox" else "on")))
        elif tag == "textarea":
            self._area = name
            self.pairs.append((name, ""))
        elif tag == "select":
            self._select = (name, None)
        elif tag == "option" and self._select:
            name, chosen = self._select
            if chosen is None or "selected" in found:
                self._select = (name, found["value"])

    def handle_endtag(self, tag):
        if tag == "form":
            self._inside = False
        elif tag == "textarea":
            if self._area:
                name, text = self.pairs.pop()
                self.pairs.append((name, text.removeprefix("\n")))
            self._area = None
        elif tag == "select" and self._select:
            self.pairs.append(self._select)
            self._select = None

    def handle_data(self, data):
        if self._area:
            name, text = self.pairs.pop()
            self.pairs.append((name, text + data))


def form_of(text):
    parser = _Form()
    parser.feed(text)
    return parser.pairs


def with_fields(pairs, **changes):
    """Return the form with these fields replaced, as the test client sends it."""
    data: dict[str, list[str]] = {}
    for name, value in pairs:
        data.setdefault(name, []).append(value)
    return {**data, **{name: value if isinstance(value, list) else [value] for name, value in changes.items()}}


def words_of(text):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def element(text, identity):
    """Return the words of the element with that id, without those of its inner elements of the same tag."""
    tag, inner = re.search(rf'<(\w+)[^>]* id="{identity}"[^>]*>(.*)', text, re.DOTALL).groups()
    return words_of(inner.split(f"</{tag}>", 1)[0])


def raw(text, identity):
    return html.unescape(re.search(rf'<pre id="{identity}">(.*?)</pre>', text, re.DOTALL)[1])


@pytest.fixture
def agents(service):
    hardware = {"cpus": 8, "mem_bytes": 16 << 30, "swarm": "manager"}
    service.store.agents.save([make_agent("a1", **hardware), make_agent("a2", **hardware)])


@pytest.fixture
def ada(browser):
    return browser("ada")


@pytest.fixture
def preview(ada):
    """Return the page's preview for these fields."""
    pairs = form_of(ada.get("/launch").text)

    def ask(**changes):
        answer = ada.post("/launch/preview", data=with_fields(pairs, **changes), headers=HTMX)
        assert answer.status_code == 200
        return answer.text

    return ask


# What becomes of it


@pytest.mark.usefixtures("agents")
def test_the_form_shows_where_the_session_would_start_now(preview):
    text = preview(cluster_size="3", cpu="4", cluster_mode="multi-node")
    line = element(text, "verdict-line")
    assert re.fullmatch(r"Starts now on a\d \(\w+, \w+\) and a\d \(\w+\)", line)
    assert element(text, "answer-line") == line
    assert 'data-kind="starts"' in text
    assert preview(cluster_size="3", cpu="4", cluster_mode="multi-node", count="2").count("starts now on") == 1


@pytest.mark.usefixtures("agents")
def test_the_form_warns_of_an_image_that_nobody_knows(preview):
    assert "image example.org/lab/typo:1: neither the catalog nor an agent has it" in preview(
        image="example.org/lab/typo:1"
    )


def test_the_form_says_at_once_that_a_folder_is_not_there(preview, service):
    service.store.agents.save([reporting(make_agent("a1"), directories=["shared"])])
    text = preview(mount_folder=["nosuch"], mount_target=[""])
    said = "there is no folder 'nosuch'; make it, or name another"
    assert element(text, "problem-mounts").endswith(said)
    assert 'data-kind="wrong"' in text
    assert 'data-kind="starts"' in preview(mount_folder=["shared"], mount_target=[""])


@pytest.mark.usefixtures("agents")
def test_the_form_takes_a_range_and_shows_how_many_containers_start(preview):
    text = preview(cluster_size="2-6", cpu="4", cluster_mode="multi-node")
    assert 'data-kind="starts"' in text
    assert element(text, "verdict-line").endswith(" containers")
    assert re.search(r", with \d of 2-6 containers$", element(text, "verdict-line"))
    assert re.search(r"2-6 containers \S 4 CPU.* = 8 CPU.* at least", text)


@pytest.mark.usefixtures("agents")
def test_the_form_shows_why_it_would_never_start_and_the_remedy(preview):
    text = preview(cpu="20")
    assert element(text, "verdict-line").startswith("Can never start: it asks for more than ")
    applied = [json.loads(html.unescape(found)) for found in re.findall(r'data-apply="([^"]*)"', text)]
    assert {"cpu": "8"} in applied
    assert element(preview(**applied[0]), "verdict-line").startswith("Starts now on ")


def test_the_form_shows_why_it_would_wait_and_names_no_other_users_session(preview, caller, service):
    service.store.agents.save([make_agent("a1")])
    eve = caller("eve")
    submitted(eve, name="secret-work-1", cpu=6, priority=95, time_limit="1h")
    submitted(eve, name="secret-work-2", cpu=7, priority=90)
    text = preview(cpu="2")
    assert element(text, "verdict-line").startswith("Waits: another user's session is ahead of it")
    assert "secret-work" not in text


def test_suggestions_name_no_session_of_others(preview, service):
    service.store.agents.save([make_agent("a1")])
    hers = placed_on(make_session(1, name="secret-work", cpu=6, time_limit="1h"), "a1")
    service.store.add([replace(hers, owner="eve")])
    text = preview(cpu="6")
    assert element(text, "verdict-line").startswith("Waits: ")
    assert "wait until other users' sessions end by their time limits" in words_of(text)
    assert "secret-work" not in text


@pytest.mark.usefixtures("agents")
def test_errors_stand_beside_their_fields(preview):
    assert element(preview(count="x"), "problem-count").startswith("'x' is not a whole number")
    text = preview(cpu="much", time_limit="soon", env_name=["1X"], env_value=["y"])
    assert "'much' is not a number; write a number such as 2" in element(text, "problem-cpu")
    assert "'soon' is not a span of time" in element(text, "problem-time_limit")
    assert "'1X' is not a variable name" in element(text, "problem-env")
    assert element(text, "problem-mem") == ""
    assert "Cannot be launched: Time limit: 'soon' is not a span of time" in element(text, "answer-line")
    assert text.count("hx-swap-oob") == len(BESIDE) + 1


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"mem": "1G", "shm": "2G"}, "Shared memory: it is more than “Memory”; "),
        ({"roles": "ps:2", "cluster_size": "2"}, "Cluster size: 2 is less than main and the roles' replicas, 3; leave"),
        ({"tasks": "2", "tasks_per_kernel": "1"}, "Tasks: tasks and “Tasks of each container” are both given; "),
        ({"roles": "ps:2\nworker:1,cpu=0.001"}, "Roles: cpu of role worker: it is less than 0.01; "),
        ({"labels": "mem_x"}, "Agent labels: 'mem_x' has no =; "),
        ({"gpu": "1", "fgpu": "0.5"}, "GPU: fGPU is asked for as well; "),
        ({"count": "3", "array": "0-3"}, "Number of sessions: an array is given as well; give one of them"),
        ({"more": "scrpt: x"}, "scrpt: there is no such field; did you mean script?"),
    ],
)
def test_errors_call_fields_what_the_form_calls_them(preview, values, line):
    shown = element(preview(**values), "answer-line")
    assert shown.startswith(f"Cannot be launched: {line}")
    assert not re.search(r"[a-z]_[a-z]", shown.replace("'mem_x'", ""))


def test_a_taken_name_is_reported_beside_its_field(preview, caller):
    submitted(caller("ada"), name="train")
    assert "already called train" in element(preview(name="train"), "problem-name")


@pytest.mark.usefixtures("agents")
def test_the_spec_is_shown_as_a_command_line_and_as_a_file(preview):
    text = preview(
        name="lab", cluster_size="2", cpu="0.5", env_name=["A"], env_value=["x <y>"], begin="now+2h", count="3"
    )
    assert raw(text, "as-command") == (
        "muster submit --begin now+2h --name lab --cluster-size 2 --cpu 0.5 --env 'A=x <y>' --count 3"
    )
    assert yaml.safe_load(raw(text, "as-file")) == {
        "begin": "now+2h", "name": "lab", "cluster_size": 2, "cpu": 0.5, "env": {"A": "x <y>"},
    }  # fmt: skip
    assert "The command line cannot hold bootstrap" in words_of(preview(bootstrap="true"))


def test_input_is_shown_as_text_on_the_page(ada):
    evil = '"><script>alert(1)</script>'
    pairs = form_of(ada.get("/launch").text)
    changes = {
        "image": evil,
        "env_name": [evil],
        "env_value": [evil],
        "more": f"script: {json.dumps(evil)}",
        "cpu": "x",
    }
    for path in ("/launch/preview", "/launch"):
        answer = ada.post(path, data=with_fields(pairs, **changes))
        assert "<script>alert" not in answer.text
    assert answer.status_code == 422
    assert dict(form_of(answer.text))["image"] == evil
    assert "style-src 'self';" in answer.headers["content-security-policy"]
    assert " style=" not in answer.text


# Launching


def test_a_launch_queues_what_the_form_says_and_goes_there(ada, service):
    pairs = form_of(ada.get("/launch").text)
    given_fields = {"name": "lab", "cluster_size": "3", "mem": "2G", "env_name": ["A", ""], "env_value": ["1", ""]}
    answer = ada.post("/launch", data=with_fields(pairs, **given_fields), follow_redirects=False)
    (session,) = service.store.search()
    assert (answer.status_code, answer.headers["location"]) == (303, f"/sessions/{session.id}")
    assert (session.name, session.owner, len(session.kernels), session.spec.mem) == ("lab", "ada", 3, 2 << 30)
    assert session.spec.env == {"A": "1"}
    several = ada.post("/launch", data=with_fields(pairs, count="2"), follow_redirects=False)
    assert several.headers["location"] == "/sessions"
    assert len(service.store.search()) == 3


def test_a_form_that_is_sent_twice_is_launched_once_and_one_that_was_changed_again(ada, service):
    pairs = form_of(ada.get("/launch").text)
    for _ in range(2):
        assert ada.post("/launch", data=with_fields(pairs), follow_redirects=False).status_code == 303
    assert len(service.store.search()) == 1
    ada.post("/launch", data=with_fields(pairs, cpu="2"), follow_redirects=False)
    ada.post("/launch", data=with_fields(form_of(ada.get("/launch").text)), follow_redirects=False)
    assert len(service.store.search()) == 3


def test_a_wrong_form_comes_back_as_it_was_with_all_its_errors(ada, service):
    pairs = form_of(ada.get("/launch").text)
    changes = {"cpu": "much", "priority": "200", "command": "line 1\nline 2", "hold": "on", "mount_folder": ["../x"]}
    answer = ada.post("/launch", data=with_fields(pairs, **changes))
    assert answer.status_code == 422
    assert service.store.search() == []
    for name in ("cpu", "priority"):
        assert re.search(
            rf'id="f-{name}"[^>]*aria-describedby="help-{name} problem-{name}" aria-invalid="true"', answer.text
        )
    assert "is not below the data root" in element(answer.text, "problem-mounts")
    listed = words_of(answer.text[answer.text.index('id="refused"') :][:2000])
    assert "CPU : 'much' is not a number" in listed
    assert "Data folders : " in listed
    again = dict(form_of(answer.text))
    assert (again["cpu"], again["command"], again["hold"]) == ("much", "line 1\nline 2", "on")


def test_nothing_is_launched_without_the_pages_own_token_or_with_one_that_reads(browser, service):
    ada = browser("ada")
    pairs = [pair for pair in form_of(ada.get("/launch").text) if pair[0] != "csrf"]
    del ada.headers["X-CSRF-Token"]
    for path in ("/launch", "/launch/preview", "/launch/load"):
        assert ada.post(path, data=with_fields(pairs)).status_code == 403
    reader = browser("ada", Scope.READ)
    page = reader.get("/launch")
    assert page.status_code == 200
    assert "may only read" in page.text
    assert reader.post("/launch", data=with_fields(form_of(page.text))).status_code == 403
    assert service.store.search() == []
    assert (
        browser("eve", sign_in=False).get("/launch", follow_redirects=False).headers["location"].startswith("/sign-in")
    )


def test_previews_are_not_audited_and_a_launch_is(ada, service):
    pairs = form_of(ada.get("/launch").text)
    ada.post("/launch/preview", data=with_fields(pairs), headers=HTMX)
    ada.post("/launch", data=with_fields(pairs), follow_redirects=False)
    lines = (service.settings.state_dir / "audit.log").read_text().splitlines()
    noted = [(line["path"], len(line["sessions"])) for line in map(json.loads, lines) if "launch" in line["path"]]
    assert noted == [("/launch", 1)]


# Beginning from something


def test_an_earlier_session_fills_in_the_form_without_what_the_queue_added(ada, caller, service):
    program = caller("ada")
    earlier = submitted(
        program, name="lab", cpu="0.5", apps=["ttyd"], cluster_size=2, begin="now+2h", mounts=["data"],
        roles=[{"name": "ps", "command": "a, b"}], ssh_keys=["ssh-ed25519 AAAA me@laptop"],
    )  # fmt: skip
    page = ada.get("/launch", params={"from": earlier["id"]}).text
    fields = dict(form_of(page))
    assert (fields["cpu"], fields["cluster_size"], fields["begin"], fields["app"]) == ("0.5", "2", "", "ttyd")
    # The session has not ended, and a name cannot be used twice.
    assert fields["name"] == ""
    more = yaml.safe_load(fields["more"])
    assert more["ssh_keys"] == ["ssh-ed25519 AAAA me@laptop"]
    assert [(role["name"], role["command"]) for role in more["roles"]] == [("ps", "a, b")]
    ada.post("/launch", data=with_fields(form_of(page)), follow_redirects=False)
    again = next(session for session in service.store.search() if session.id != earlier["id"])
    first = service.store.get([earlier["id"]])[earlier["id"]]
    assert again.spec == first.spec.model_copy(update={"name": again.name, "begin": None})
    program.delete(f"{SESSIONS}/{earlier['id']}")
    assert dict(form_of(ada.get("/launch", params={"from": "lab"}).text))["name"] == "lab"


def test_anothers_session_fills_in_nothing(ada, caller):
    hers = submitted(caller("eve"), name="private", env={"PASSWORD": "hush"})
    for reference in ("private", hers["id"]):
        answer = ada.get("/launch", params={"from": reference})
        assert answer.status_code == 404
        assert "hush" not in answer.text


@pytest.mark.parametrize("way", ["file", "text"])
def test_a_session_file_fills_in_the_form(ada, service, way):
    text = "name: lab\ncpu: 2\nbegin: 2099-11-22 08:00:00Z\nenv: {A: 1}\nscript: |\n  #!/bin/sh\n  true\n"
    sending = {"files": {"file": ("s.yml", text)}} if way == "file" else {"data": {"text": text}}
    answer = ada.post("/launch/load", **sending)
    assert answer.status_code == 200
    ada.post("/launch", data=with_fields(form_of(answer.text)), follow_redirects=False)
    (session,) = service.store.search()
    assert (session.name, session.spec.cpu, session.spec.env) == ("lab", 2000, {"A": "1"})
    assert session.spec.script == "#!/bin/sh\ntrue\n"
    assert session.spec.begin == datetime(2099, 11, 22, 8, tzinfo=UTC).timestamp()


def test_a_file_that_cannot_be_read_is_refused(ada):
    for content in (b"\xff\xfe", b"", b"x" * (1 << 20) + b"y", b"- 1"):
        answer = ada.post("/launch/load", files={"file": ("s.yml", content)})
        assert answer.status_code == 422
        assert "file: " in answer.text


@pytest.mark.usefixtures("agents")
def test_the_form_offers_only_what_the_user_may_use(ada, service):
    service.store.folders.add(Folder("1" * 36, "ada", "mine", NOW))
    service.store.folders.add(Folder("2" * 36, "eve", "her-folder", NOW))
    service.secrets.set("ada", "token", "hush", NOW)
    service.secrets.set("eve", "other-secret", "hush", NOW)
    page = ada.get("/launch").text
    for chosen in ("mine", "token", "a1", "default"):
        assert f'<option value="{chosen}">' in page
    assert "her-folder" not in page
    assert "other-secret" not in page
    assert "hush" not in page


def test_a_preset_of_the_site_fills_in_the_form(browser, service):
    spec = SessionSpec(image="muster/pytorch", fgpu="0.5", env={"EPOCHS": "3"})
    preset = PresetSettings(description="half a <GPU>", spec=spec)
    object.__setattr__(service.settings, "presets", {"Half & more": preset})
    ada = browser("ada")
    page = ada.get("/launch").text
    assert '<a class="button small" href="/launch?preset=Half+%26+more">Half &amp; more</a>' in page
    assert "half a &lt;GPU&gt;" in page
    filled = dict(form_sent(ada.get("/launch?preset=Half+%26+more").text))
    assert (filled["image"], filled["fgpu"], filled["env_name"]) == ("muster/pytorch", "0.5", "EPOCHS")
    assert ada.get("/launch?preset=other").status_code == 404


def form_sent(page):
    parser = _Form()
    parser.feed(page)
    # Of the rows, the last ones are empty.
    return [(name, value) for name, value in parser.pairs if value]


def test_rarely_used_sections_are_folded_unless_they_say_something(browser):
    ada = browser("ada")
    page = ada.get("/launch").text
    sections = ("about-place", "about-files", "about-env", "image-picker")
    assert [bool(re.search(rf'<details[^>]* id="{name}" open>', page)) for name in sections] == [False] * 4
    posted = ada.post("/launch", data={**dict(form_sent(page)), "priority": "much"})
    assert posted.status_code == 422
    assert re.search(r'<details[^>]* id="about-place" open>', posted.text)
    assert not re.search(r'<details[^>]* id="about-files" open>', posted.text)

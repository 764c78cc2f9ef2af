"""Apps: what a spec may ask for, what the site makes of it, what main1 is given, how each fares."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.ansible_gateway.templates import Templates
from muster.contract.manifest import AppEntry, LaunchedSession
from muster.contract.report import AppReport
from muster.core.launch.app_files import app_files, manifest_apps
from muster.core.launch.manifest import KeyPair, LaunchPolicy, manifest
from muster.core.model.apps import KINDS, START_PATIENCE_S, App, AppState, app_statuses, app_token, apps_of, with_kinds
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError, NotFoundError, SettingsError, SpecError
from muster.service.reach.apps import app_named, session_apps
from muster.settings import Settings, load_settings
from tests.properties import cheap
from tests.reports import reports_of
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on

SSHD_PORT = 2200


def resolved(settings: Settings | None = None, **fields: Any) -> SessionSpec:
    kinds = (settings or Settings()).app_kinds()
    return with_kinds(validated(SessionSpec, fields), kinds, SSHD_PORT)


def refusal(**fields: Any) -> list[str]:
    with pytest.raises(SpecError) as raised:
        resolved(**fields)
    return [str(error) for error in raised.value.errors]


def test_a_name_is_enough_for_what_the_site_knows():
    spec = resolved(apps=["jupyterlab", "tensorboard=7000"], publish=["8080", "web=9090", 7777])
    jupyter, tensorboard, *published = apps_of(spec)
    assert (jupyter.port, jupyter.health, jupyter.token) == (8888, "/api", True)
    assert (tensorboard.port, tensorboard.command) == (7000, KINDS["tensorboard"].command)
    assert [(app.name, app.port, app.command, app.health) for app in published] == [
        ("8080", 8080, None, ""),
        ("web", 9090, None, ""),
        ("7777", 7777, None, ""),
    ]


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"apps": ["Lab"]}, ["apps[0].name: 'Lab' is not an app's name; use lower-case letters, digits and dashes"]),
        (
            {"apps": ["nope", "never"]},
            [
                "apps[0]: there is no app 'nope'; choose one of jupyterlab, mlflow, tensorboard, ttyd, or give",
                "apps[1]: there is no app 'never'",
            ],
        ),
        ({"apps": [{"name": "mine", "port": 80}]}, ["apps[0]: there is no app 'mine'"]),
        ({"apps": ["ttyd", "ttyd=80"]}, ["apps[1]: ttyd is given twice; give each app a name of its own"]),
        ({"publish": ["a=80", "b=80"]}, ["publish[1]: port 80 is given twice; give each app a port of its own"]),
        (
            {"apps": ["jupyterlab"], "publish": ["8888"]},
            ["publish[0]: 8888 and jupyterlab both serve port 8888; give one of them another port"],
        ),
        ({"apps": ["ttyd=2200"]}, ["apps[0]: port 2200 is the container's own sshd's; choose another port"]),
        ({"publish": ["0"]}, ["publish[0].port: '0' is too small; write 1 or more"]),
        ({"publish": ["70000"]}, ["publish[0].port: '70000' is too large; write 65535 or less"]),
        ({"apps": [{"name": "ttyd", "health": "ready"}]}, ["apps[0].health: 'ready' is not a path; write one such as"]),
        ({"apps": [{"name": "ttyd", "url": "lab"}]}, ["apps[0].url: 'lab' is neither a path nor a URL; write one"]),
    ],
)
def test_impossible_apps_are_refused_with_a_remedy(fields, lines):
    found = refusal(**fields)
    assert len(found) == len(lines)
    for line, start in zip(found, lines, strict=True):
        assert line.startswith(start)


def test_a_spec_that_was_resolved_once_stays_as_it_is():
    once = resolved(apps=["jupyterlab", {"name": "mlflow", "args": "--workers 1"}], publish=["80"])
    again = resolved(**once.model_dump(mode="json"))
    assert again == once
    assert apps_of(once)[1].command == f"{KINDS['mlflow'].command} --workers 1"


def test_a_site_has_apps_of_its_own_and_changes_the_built_in_ones():
    settings = validated(Settings, {"apps": {"hello": {"command": "hello", "port": 80}, "mlflow": {"port": 5001}}})
    hello, mlflow = apps_of(resolved(settings, apps=["hello", "mlflow"]))
    assert (hello.command, hello.port, hello.url) == ("hello", 80, "/")
    assert (mlflow.command, mlflow.port) == (KINDS["mlflow"].command, 5001)


def test_a_sites_app_needs_a_command_and_a_port(tmp_path):
    file = tmp_path / "muster.yml"
    file.write_text("apps: {hello: {port: 80}}\n")
    with pytest.raises(SettingsError, match="apps: hello has no command or no port; give it both"):
        load_settings(file)


def test_an_app_with_a_command_of_its_own_does_not_get_its_kinds_url_and_token():
    (app,) = apps_of(resolved(apps=[{"name": "jupyterlab", "command": "serve"}]))
    assert app == App("jupyterlab", 8888, "serve", health="/", url="/", token=False)


def test_the_url_leads_to_the_tunnel_and_holds_the_token():
    assert App("a", 80, url="/lab?token={token}").address(8000, "t") == "http://127.0.0.1:8000/lab?token=t"
    assert App("a", 80, url="https://u:{token}@127.0.0.1:{port}/").address(1, "t") == "https://u:t@127.0.0.1:1/"


@cheap
@given(st.text(min_size=1), st.text(min_size=1), st.sampled_from(sorted(KINDS)))
def test_a_token_is_one_launchs_and_one_apps(key, other, name):
    assert app_token(key, name) == app_token(key, name)
    assert (app_token(key, name) == app_token(other, name)) == (key == other)
    assert app_token(key, name) != app_token(key, name + "x")
    assert key not in app_token(key, name) or len(key) < 16


def test_only_main1_gets_apps():
    session = with_apps(cluster_size=3, apps=["jupyterlab", "ttyd"], publish=["80"])
    session = replace(session, state=SessionState.PREPARING, step=LaunchStep.STARTING)
    keys = {session.id: KeyPair("the private key", "ssh-ed25519 AAAA")}
    written = manifest(make_agent("a1"), [session], keys, 8, LaunchPolicy(), Templates().render)
    (launched,) = written.sessions
    assert isinstance(launched, LaunchedSession)
    main, *others = launched.kernels
    assert main.apps == (
        AppEntry(name="jupyterlab", port=8888, health="/api", starts=True),
        AppEntry(name="ttyd", port=7681, health="/", starts=True),
        AppEntry(name="80", port=80, health=None, starts=False),
    )
    assert main.files["app-jupyterlab.token"].content == app_token("the private key", "jupyterlab")
    assert "run_app jupyterlab 8888 &\nrun_app ttyd 7681 &\n" in main.files["apps"].content
    assert len(others) == 2
    for kernel in others:
        assert kernel.apps == ()
        assert not [name for name in kernel.files if name.startswith("app")]


def test_a_published_port_needs_no_file():
    session = with_apps(publish=["80"])
    assert app_files(session, session.main, "key", "/opt/muster/runtime", Templates().render) == {}
    assert manifest_apps(session, session.main)[0].starts is False


@pytest.mark.parametrize(
    ("facts", "age_s", "state", "reason"),
    [
        (AppReport(healthy=True, exit_code=None, problem=""), 1, AppState.HEALTHY, ""),
        (AppReport(healthy=False, exit_code=None, problem="silent"), 1, AppState.STARTING, "silent"),
        (AppReport(healthy=False, exit_code=None, problem="silent"), START_PATIENCE_S, AppState.UNHEALTHY, "silent"),
        (
            AppReport(healthy=False, exit_code=127, problem="sh: ttyd: not found"),
            1,
            AppState.MISSING,
            "sh: ttyd: not found",
        ),
        (AppReport(healthy=False, exit_code=3, problem=""), 1, AppState.UNHEALTHY, "it ended with exit code 3"),
        (AppReport(healthy=False, exit_code=3, problem="x"), 1, AppState.UNHEALTHY, "it ended with exit code 3: x"),
        (None, 1, AppState.STARTING, ""),
        (None, START_PATIENCE_S, AppState.UNHEALTHY, "its agent has not reported it yet"),
    ],
)
def test_the_status_of_an_app(facts, age_s, state, reason):
    session = with_apps(apps=["ttyd"])
    assert session.started_at is not None
    (view,) = app_statuses(session, {} if facts is None else {"ttyd": facts}, session.started_at + age_s)
    assert (view.state, view.reason) == (state, reason)


def test_apps_of_a_session_that_does_not_run_have_no_state():
    session = replace(with_apps(apps=["ttyd"]), state=SessionState.TERMINATED)
    (view,) = app_statuses(session, {"ttyd": AppReport(healthy=True)}, 0.0)
    assert view.state is None


def test_an_agents_report_of_an_earlier_launch_does_not_count():
    session = with_apps(apps=["ttyd"])
    healthy = {"ttyd": {"healthy": True, "exit_code": None, "problem": ""}}
    report = reports_of(session, main1={"apps": healthy})["a1"]
    agent = replace(make_agent("a1"), report=report)
    (view,) = session_apps(session, [agent, make_agent("a2")], 0.0)
    assert view.state is AppState.HEALTHY
    (view,) = session_apps(replace(session, generation=session.generation + 1), [agent], 0.0)
    assert view.state is not AppState.HEALTHY


def test_an_app_is_found_by_its_name_or_as_the_only_one():
    session = with_apps(apps=["ttyd"], publish=["web=80"])
    assert app_named(session, "web").port == 80
    with pytest.raises(BadInputError, match="has several apps; name one of ttyd, web"):
        app_named(session, None)
    with pytest.raises(NotFoundError, match="has no app 'x'; it has ttyd, web"):
        app_named(session, "x")
    assert app_named(with_apps(publish=["80"]), None).name == "80"
    with pytest.raises(NotFoundError, match="has no apps; launch it with an app or a published port"):
        app_named(with_apps(), None)


def with_apps(**fields: Any) -> Session:
    """Return a session on a1 that runs."""
    spec = resolved(name="lab", image="busybox", **fields)
    return placed_on(
        make_session(1, **{field: getattr(spec, field) for field in ("apps", "publish", "cluster_size")}), "a1"
    )

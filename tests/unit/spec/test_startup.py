"""What a spec may say of how kernels begin, and which files that becomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.launch.startup_files import startup_files
from muster.core.spec.errors import validated
from muster.core.spec.mounts import HOME
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.startup import MAX_BOOTSTRAP_BYTES, MAX_INPUT_BYTES
from muster.core.values.errors import SpecError
from tests.properties import cheap
from tests.strategies.sessions import make_session


def errors(**fields):
    with pytest.raises(SpecError) as raised:
        validated(SessionSpec, fields)
    return [str(error) for error in raised.value.errors]


@pytest.mark.parametrize(
    ("short", "env", "path"),
    [("token", None, None), ("token=API_TOKEN", "API_TOKEN", None), (f"token:{HOME}/.t", None, f"{HOME}/.t")],
)
def test_a_secret_has_a_short_form(short, env, path):
    (secret,) = validated(SessionSpec, {"secrets": [short]}).secrets
    assert (secret.name, secret.env, secret.path) == ("token", env, path)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"secrets": ["../x"]}, "secrets[0].name"),
        ({"secrets": ["a=1B"]}, "secrets[0]"),
        ({"secrets": ["a=PATH"]}, "secrets[0]"),
        ({"secrets": ["a=LD_PRELOAD"]}, "secrets[0]"),
        ({"secrets": ["a=BACKENDAI_SESSION_ID"]}, "secrets[0]"),
        ({"secrets": ["a:relative"]}, "secrets[0]"),
        ({"secrets": ["a:/x\ny"]}, "secrets[0].path"),
        ({"secrets": ["a=T", "b=T"]}, "secrets"),
        ({"secrets": ["a=T"], "env": ["T=1"]}, "secrets"),
        ({"workdir": "project"}, "workdir"),
        ({"workdir": "/a/../b"}, "workdir"),
        ({"bootstrap": " \n"}, "bootstrap"),
        ({"bootstrap": "x" * (MAX_BOOTSTRAP_BYTES + 1)}, "bootstrap"),
        ({"input": "x" * (MAX_INPUT_BYTES + 1), "command": "cat"}, "input"),
        ({"input": "é" * (MAX_INPUT_BYTES // 2 + 1), "command": "cat"}, "input"),
        ({"input": "x"}, "input"),
        ({"callback": "file:///etc/passwd"}, "callback"),
        ({"callback": "http://"}, "callback"),
        ({"callback": "https://host:port/"}, "callback"),
        ({"callback": "https://host/a b"}, "callback"),
        ({"callback": "https://host/\r\nX: y"}, "callback"),
    ],
)
def test_an_error_gets_one_line_with_the_field(fields, field):
    (line,) = errors(**fields)
    assert line.startswith(f"{field}: ")
    assert "; " in line


@cheap
@given(st.text())
def test_a_callback_is_a_web_address_or_refused(url):
    try:
        spec = validated(SessionSpec, {"callback": url})
    except SpecError:
        return
    assert spec.callback is not None
    assert spec.callback.lower().startswith(("http://", "https://"))
    assert not any(character.isspace() for character in spec.callback)


def test_every_kernel_gets_the_bootstrap_script_and_the_secrets_and_those_with_the_command_its_input():
    session = make_session(
        cluster_size=3,
        roles=["helper:1,command=sleep 1"],
        command="cat",
        input="rows",
        bootstrap="true",
        workdir="/data//x/",
        secrets=["token=API", f"token:{HOME}/.t", "other"],
    )
    values = {"token": "T", "other": "O", "not asked for": "N"}
    made = {kernel.name: startup_files(session, kernel, values) for kernel in session.kernels}
    assert [name for name, files in made.items() if "stdin" in files] == ["main1"]
    for files in made.values():
        contents = {name: file.content for name, file in files.items() if name != "stdin"}
        assert contents == {
            "bootstrap": "true",
            "workdir": "/data/x",
            "secrets/token": "T",
            "secrets/other": "O",
            "secret_env": "API token\n",
            "secret_links": f"token {HOME}/.t\n",
        }
        assert {file.mode for name, file in files.items() if name.startswith("secret")} == {"0400"}


@pytest.mark.parametrize(("run_on", "readers"), [("main", ["main1"]), ("all", ["main1", "sub1"])])
def test_all_that_run_the_command_read_the_input(run_on, readers):
    session = make_session(cluster_size=2, command="cat", input="rows", run_on=run_on)
    assert [k.name for k in session.kernels if "stdin" in startup_files(session, k, {})] == readers


def test_a_session_without_any_of_it_gets_no_file():
    session = make_session(cluster_size=2, command="cat")
    assert [startup_files(session, kernel, {}) for kernel in session.kernels] == [{}, {}]

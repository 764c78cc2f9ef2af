"""The command line, as a shell sees it: output, errors, exit codes. No engine and no agent is needed."""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from muster.cli.main import _COMMANDS, main
from muster.core import lifecycle
from muster.core.session import Session, SessionState
from muster.store.store import Store
from tests.strategies import NOW, make_agent, placed_on


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        return self.err.splitlines()


class _Output(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def muster(*arguments: str) -> Answer:
    out, err = _Output(), _Output()
    with patch.object(sys, "argv", ["muster", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return Answer(code if isinstance(code, int) else int(code is not None), out.text, err.text)


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a control node of its own."""
    (tmp_path / "state").mkdir(mode=0o700)
    shutil.copy(empty_database, tmp_path / "state" / "muster.db")
    write_settings(tmp_path, {})
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.yml"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SUDO_USER", "ada")
    return tmp_path / "state"


def write_settings(directory: Path, values: dict[str, object]) -> Path:
    path = directory / "muster.yml"
    defaults = {"state_dir": str(directory / "state"), "catalog": str(directory / "images.yml"),
                "inventory": str(directory / "inventory")}  # fmt: skip
    path.write_text(yaml.safe_dump({**defaults, **values}), encoding="utf-8")
    return path


@pytest.fixture
def store(state_dir: Path) -> Store:
    return Store(f"sqlite:///{state_dir / 'muster.db'}")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "job.sh"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def submitted(*arguments: str) -> dict[str, Any]:
    """The one session that `muster submit … --json` queues."""
    answer = muster("submit", "--json", *arguments)
    assert answer.code == 0, answer.err
    (session,) = answer.json
    return session


def nothing_queued() -> bool:
    return muster("ls", "--all", "--json").json == []


# Submit


def test_submit_takes_every_flag():
    session = submitted(
        *("--name", "lab", "--image", "debian:12", "--cluster-size", "4", "--cluster-mode", "multi-node"),
        *("--role", "ps:2,cpu=1", "--cpu", "2", "--mem", "4G", "--shm", "1G", "--fgpu", "0.5"),
        *("-e", "A=1", "-e", "B=2"),
        *("-v", "data:/data:ro", "--priority", "80", "--time-limit", "2h", "--resource-group", "gpu"),
        *("--type", "batch", "--command", "python train.py", "--on", "all"),
    )  # fmt: skip
    assert (session["name"], session["owner"], session["state"], session["type"]) == ("lab", "ada", "PENDING", "batch")
    assert [kernel["name"] for kernel in session["kernels"]] == ["main1", "ps1", "ps2", "sub1"]
    spec = session["spec"]
    assert (spec["cpu"], spec["mem"], spec["shm"], spec["fgpu"]) == ("2000m", 4 << 30, 1 << 30, "500m")
    assert spec["env"] == {"A": "1", "B": "2"}
    assert spec["mounts"] == [{"folder": "data", "target": "/data", "read_only": True}]
    assert (spec["priority"], spec["time_limit"], spec["resource_group"]) == (80, "7200s", "gpu")
    assert (spec["command"], spec["run_on"], spec["image"]) == ("python train.py", "all", "debian:12")


def test_submit_without_anything_is_a_session_of_one():
    session = submitted()
    assert (session["cluster_size"], session["type"]) == (1, "interactive")
    assert session["name"].startswith("session-")
    assert session["id"] == session["kernels"][0]["id"]


def test_submit_prints_name_and_id_or_with_quiet_the_id_alone():
    out = muster("submit", "--name", "a").out
    assert out == f"Submitted a {muster('show', 'a', '--json').json['id']}\n"
    identity = muster("submit", "-q").out.strip()
    assert muster("show", identity, "--json").json["id"] == identity


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["python", "train.py"], "python train.py"),
        (["sh", "-c", "echo $HOME; exit 3"], "sh -c 'echo $HOME; exit 3'"),
        (["echo one; echo two"], "echo one; echo two"),
        (["prog", "--name", "x", "--", "-q"], "prog --name x -- -q"),
    ],
)
def test_what_stands_behind_two_dashes_is_the_command(words, command):
    session = submitted("--cpu", "2", "--", *words)
    assert (session["spec"]["command"], session["type"]) == (command, "batch")


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_submit_reads_a_session_file_and_flags_win_over_it(tmp_path, form):
    values = {"name": "filed", "cluster_size": 3, "env": {"A": 1}, "priority": 20, "distributed_env": False}
    path = tmp_path / "session"
    path.write_text(yaml.safe_dump(values) if form == "yaml" else json.dumps(values), encoding="utf-8")
    session = submitted("-f", str(path), "--priority", "80")
    assert (session["name"], session["cluster_size"], session["spec"]["priority"]) == ("filed", 3, 80)
    assert session["spec"]["distributed_env"] is False


def test_a_session_that_was_shown_can_be_submitted_again(tmp_path):
    first = submitted("--cluster-size", "2", "--name", "one", "--mem", "2G", "--", "true")
    path = tmp_path / "again.json"
    path.write_text(json.dumps(first["spec"]), encoding="utf-8")
    second = submitted("-f", str(path), "--name", "two")
    assert {**first["spec"], "name": ""} == {**second["spec"], "name": "", "ssh_keys": first["spec"]["ssh_keys"]}


def test_submit_reads_flags_from_the_lines_of_a_job_script(script):
    path = script(
        "#!/bin/sh\n#MUSTER --cluster-size 3 --cpu 2\n# a remark\n#MUSTER -e 'A=x y'\necho\n#MUSTER --gpu 9\n"
    )
    session = submitted(path)
    assert (session["name"], session["cluster_size"], session["type"]) == ("job", 3, "batch")
    assert (session["spec"]["cpu"], session["spec"]["env"], session["spec"]["gpu"]) == ("2000m", {"A": "x y"}, 0)
    assert session["spec"]["script"] == Path(path).read_text(encoding="utf-8")


def test_flags_win_over_script_lines_and_script_lines_over_the_file(tmp_path, script):
    filed = tmp_path / "session.yml"
    filed.write_text("priority: 10\ncpu: 1\nmem: 1G\n", encoding="utf-8")
    path = script("#!/bin/sh\n#MUSTER --priority 20 --cpu 2\ntrue\n")
    spec = submitted(path, "-f", str(filed), "--priority", "30")["spec"]
    assert (spec["priority"], spec["cpu"], spec["mem"]) == (30, "2000m", 1 << 30)


def test_variables_of_the_file_stay_where_a_flag_names_others(tmp_path, script):
    filed = tmp_path / "session.yml"
    filed.write_text("env: {A: file, B: file, C: 1}\n", encoding="utf-8")
    path = script("#!/bin/sh\n#MUSTER --env B=script --env D=script\ntrue\n")
    spec = submitted(path, "-f", str(filed), "--env", "D=flag")["spec"]
    assert spec["env"] == {"A": "file", "B": "script", "C": "1", "D": "flag"}


def test_more_kernels_at_once_than_the_queue_takes_are_refused():
    answer = muster("submit", "--count", "10000", "--cluster-size", "1000")
    assert answer.code == 2
    assert answer.errors == [
        "muster: count: 10000 sessions of 1000 kernels are too many at once; submit 100000 kernels at the most"
    ]


def test_count_queues_numbered_sessions_or_none():
    assert [s["name"] for s in muster("submit", "--count", "3", "--name", "n", "--json").json] == ["n-1", "n-2", "n-3"]
    assert len(muster("submit", "--count", "2", "-q").out.split()) == 2
    answer = muster("submit", "--count", "4", "--name", "n")
    assert answer.code == 2
    assert len(muster("ls", "--json").json) == 5


def test_the_public_keys_of_the_user_may_log_in(tmp_path):
    directory = tmp_path / "home" / ".ssh"
    directory.mkdir(parents=True)
    (directory / "id_ed25519.pub").write_text("ssh-ed25519 AAAA me@laptop\n", encoding="utf-8")
    (directory / "id_ed25519").write_text("PRIVATE", encoding="utf-8")
    assert submitted()["spec"]["ssh_keys"][0] == "ssh-ed25519 AAAA me@laptop"
    other = tmp_path / "other.pub"
    other.write_text("ssh-rsa BBBB other\n", encoding="utf-8")
    assert submitted("--ssh-key", str(other))["spec"]["ssh_keys"][0] == "ssh-rsa BBBB other"


def test_an_image_may_be_given_by_its_name_in_the_catalog(tmp_path):
    entry = {"name": "torch", "reference": "registry.example/torch:2", "aliases": ["pytorch"]}
    (tmp_path / "images.yml").write_text(yaml.safe_dump({"images": [entry]}), encoding="utf-8")
    assert submitted("-i", "pytorch")["kernels"][0]["image"] == "registry.example/torch:2"
    assert submitted("-i", "debian:12")["kernels"][0]["image"] == "debian:12"


def test_schema_prints_the_schema_and_queues_nothing():
    assert "cluster_size" in muster("submit", "--schema").json["properties"]
    assert nothing_queued()


def test_a_session_that_never_fits_is_queued_and_said_so(store):
    store.save_agents([make_agent(cpus=4)])
    answer = muster("submit", "--cpu", "5", "--name", "giant")
    assert answer.code == 0
    assert answer.errors[0].startswith("muster: giant never fits")


def test_waiting_ends_when_the_time_to_wait_is_over():
    answer = muster("submit", "--name", "a", "--wait", "--wait-timeout", "0.01")
    assert answer.code == 1
    assert "still waiting for a (PENDING)" in answer.err


# Errors


def test_all_errors_of_a_spec_come_one_to_a_line_and_nothing_is_queued():
    answer = muster("submit", "--name", "-x", "--cpu", "many", "--mem", "4X", "--gpu", "1.5", "--type", "bach")
    assert answer.code == 2
    assert [line.split(": ")[1] for line in answer.errors] == ["name", "type", "cpu", "mem", "gpu"]
    assert all(line.startswith("muster: ") and "; " in line for line in answer.errors)
    assert nothing_queued()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "--"], "nothing stands behind --"),
        (["submit", "--count", "0"], "1 to 10000"),
        (["submit", "--count", "many"], "--count"),
        (["submit", "--nmae", "x"], "--name"),
        (["submit", "-f", "nosuch.yml"], "nosuch.yml"),
        (["submit", "-f", "/"], "cannot be read"),
        (["submit", "nosuch.sh"], "a command goes behind --"),
        (["submit", "--ssh-key", "nosuch.pub"], "--ssh-key"),
        (["submit", "--command", ""], "command: it is empty"),
        (["submit", "-e", "A"], "NAME=VALUE"),
        (["show", "nosuch"], "there is no session 'nosuch'"),
        (["why", "nosuch"], "there is no session"),
        (["logs", "nosuch"], "there is no session"),
        (["exec", "nosuch", "--", "true"], "there is no session"),
        (["ssh", "nosuch"], "there is no session"),
        (["terminate", "nosuch"], "there is no session"),
        (["terminate"], "name one, or use --all"),
        (["cancel", "nosuch"], "there is no session"),
        (["cancel"], "SESSION"),
        (["show"], "SESSION"),
        (["ls", "--limit", "0"], "--limit"),
        (["ls", "--state", "SLEEPING"], "pending"),
        (["completion", "csh"], "bash"),
        (["submti"], "Did you mean 'submit'?"),
        (["frobnicate"], "No such command"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_bad_input_is_exit_code_2_with_a_reason(arguments, said):
    answer = muster(*arguments)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n- b\n", "holds no mapping"),
        ("", "holds no mapping"),
        ("name: [", "is not YAML"),
        ("\x00", "is not YAML"),
        ("nmae: x\n", "nmae: there is no such field; did you mean name?"),
        ("1: 2\n", "1: there is no such field"),
        ("cluster_size: 0\ncpu: x\n", "cluster_size: 0 is too small; write 1 or more"),
        ("roles: 5\n", "roles"),
        ("mounts: [1]\n", "mounts[0]"),
        ("env: [1]\n", "env: 1 has no ="),
        ("name: 5\n", "put it in quotes"),
        ("cpu: .inf\n", "cpu"),
        ("image: null\n", "image"),
        ("a: &a [*a]\n", ""),
    ],
)
def test_a_session_file_that_is_wrong_is_refused(tmp_path, text, said):
    path = tmp_path / "session.yml"
    path.write_text(text, encoding="utf-8")
    answer = muster("submit", "-f", str(path))
    assert answer.code == 2
    assert said in answer.err
    assert nothing_queued()


def test_a_session_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "session.yml"
    path.write_bytes(b"name: \xff\xfe")
    assert muster("submit", "-f", str(path)).code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hi\n", "does not begin with #!"),
        ("#!/bin/sh\n#MUSTER --nosuch 1\n", "--nosuch"),
        ("#!/bin/sh\n#MUSTER --cpu '2\n", "job.sh:2"),
        ("#!/bin/sh\n#MUSTER --wait\n", "no flag of the session spec"),
        ("#!/bin/sh\n#MUSTER --cpu many\n", "cpu: 'many' is not a number"),
        ("#!/bin/sh\n#MUSTER -- true\n", "#MUSTER"),
    ],
)
def test_a_job_script_that_is_wrong_is_refused(script, text, said):
    answer = muster("submit", script(text))
    assert answer.code == 2
    assert said in answer.err
    assert nothing_queued()


def test_a_script_and_a_command_are_one_too_many(script):
    answer = muster("submit", script("#!/bin/sh\ntrue\n"), "--", "true")
    assert answer.code == 2
    assert "command and script are both given" in answer.err


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"clustre": "x"}, "clustre: there is no such field; did you mean cluster?"),
        ({"master_port": 0}, "master_port: 0 is too small; write 1 or more"),
        ({"cluster": "My Cluster"}, "cluster"),
        ({"pids": "many"}, "pids: 'many' is not a whole number"),
        ({"database": "nosuch://x"}, "database nosuch://x cannot be opened"),
    ],
)
def test_wrong_settings_name_the_file_and_the_field(tmp_path, values, said):
    path = write_settings(tmp_path, values)
    answer = muster("ls")
    assert answer.code == 2
    assert said in answer.err
    assert "database" in values or str(path) in answer.err


def test_a_catalog_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "images.yml").write_bytes(b"\xff\xfe")
    answer = muster("submit")
    assert (answer.code, "images.yml" in answer.err) == (2, True)


@pytest.mark.parametrize("text", [None, "cluster: [", "- a", "5"])
def test_a_settings_file_that_cannot_be_read_is_named(tmp_path, text):
    path = tmp_path / "muster.yml"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    answer = muster("ls")
    assert answer.code == 2
    assert str(path) in answer.err


def test_settings_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "muster.yml").write_bytes(b"\xff\xfe\x00")
    assert muster("ls").code == 2


def test_a_settings_path_that_is_a_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path))
    answer = muster("ls")
    assert answer.code == 2
    assert str(tmp_path) in answer.err


# Looking and ending


def test_ls_show_and_why_of_a_pending_session():
    session = submitted("--name", "train", "--cluster-size", "2", "--", "true")
    header, row = muster("ls").out.splitlines()
    assert header.split() == ["ID", "NAME", "OWNER", "TYPE", "STATE", "SIZE", "RESOURCES", "AGENTS", "AGE", "REASON"]
    assert row.split()[:6] == [session["id"][:8], "train", "ada", "batch", "PENDING", "2"]
    shown = muster("show", "train").out
    for part in (session["id"], "main1", "sub1", "submitted"):
        assert part in shown
    assert muster("show", session["id"][:8], "--json").json["story"][0]["to"] == "PENDING"
    assert "the next pass looks at it" in muster("why", "train").out
    assert muster("why", "train", "--json").json["wait"] is None


def test_why_says_what_the_last_pass_found(store):
    session = submitted("--name", "train", "--cpu", "3")
    wait = {"code": "busy", "message": "busy: needs 1 cpu more", "position": 4, "agents_considered": 2,
            "filtered": {"lost": 1}, "exhausted": {"cpu": 2}, "nearest": None}  # fmt: skip
    store.save_waits({session["id"]: wait})
    out = muster("why", "train").out
    for part in ("busy: needs 1 cpu more", "place in the queue of group default: 4", "too little free now: cpu on 2"):
        assert part in out
    assert "1 lost" in out


def test_ls_filters():
    for name in ("a", "b", "c"):
        submitted("--name", name)
    muster("submit", "--name", "d", "--owner", "eve")
    assert muster("cancel", "b").out == "b is CANCELLED\n"

    def names(*arguments: str) -> list[str]:
        return [session["name"] for session in muster("ls", "--json", *arguments).json]

    assert names() == ["a", "c", "d"]
    assert names("--all") == ["a", "b", "c", "d"]
    assert names("--mine") == ["a", "c"]
    assert names("--state", "cancelled") == ["b"]
    assert names("--limit", "1") == ["d"]


def test_cancel_and_terminate_of_pending_sessions():
    for name in ("a", "b"):
        submitted("--name", name)
    assert muster("cancel", "a", "--json").json[0]["state"] == "CANCELLED"
    assert muster("terminate", "b").out == "b is CANCELLED\n"
    assert muster("terminate", "b").out == "b is CANCELLED\n"
    assert muster("show", "b", "--json").json["reason"] == "ended by ada"


def test_terminate_looks_every_name_up_before_it_ends_one():
    submitted("--name", "a")
    assert muster("terminate", "a", "nosuch").code == 2
    assert muster("show", "a", "--json").json["state"] == "PENDING"


def test_terminate_all_ends_mine_only():
    submitted("--name", "a")
    muster("submit", "--name", "d", "--owner", "eve")
    assert muster("terminate", "--all").code == 0
    assert [session["name"] for session in muster("ls", "--json").json] == ["d"]
    assert muster("terminate", "--all").code == 0


def running(store: Store, name: str) -> Session:
    session = store.find(name)
    store.apply(
        [
            lifecycle.Event(session.id, NOW, SessionState.PENDING, SessionState.SCHEDULED, "placed", {},
                            {k.id: {"allocation": k.allocation} for k in placed_on(session, "a1").kernels})
        ]
    )  # fmt: skip
    return store.find(name)


def test_cancel_of_a_session_that_is_placed_points_to_terminate(store):
    submitted("--name", "a")
    running(store, "a")
    answer = muster("cancel", "a")
    assert (answer.code, "use `muster terminate a`" in answer.err) == (1, True)
    assert muster("terminate", "a").out == "a is TERMINATING\n"


@pytest.mark.parametrize("command", [["logs", "a"], ["exec", "a", "--", "true"], ["ssh", "a"]])
def test_what_needs_containers_says_that_there_are_none(command):
    submitted("--name", "a")
    answer = muster(*command)
    assert (answer.code, "PENDING" in answer.err) == (1, True)


def test_a_kernel_that_does_not_exist_is_named():
    submitted("--name", "a", "--cluster-size", "2")
    answer = muster("logs", "a:sub2")
    assert (answer.code, "has no kernel 'sub2'; it has main1, sub1" in answer.err) == (2, True)


def test_tables_without_rows_are_a_header():
    assert len(muster("ls").out.splitlines()) == 1
    answer = muster("agents")
    assert (answer.code, len(answer.out.splitlines())) == (0, 1)
    assert "muster pass" in answer.err
    assert muster("images").code == 0


def test_agents_show_what_is_free(store):
    store.save_agents([make_agent(cpus=4, mem_bytes=8 << 30, gpus=1, units_per_gpu=2)])
    row = muster("agents").out.splitlines()[1].split()
    assert row[:7] == ["a1", "default", "ALIVE", "4/4", "8G/8G", "1/1", "2/2"]
    assert muster("agents", "--json").json[0]["free"] == {"cpu": 4000, "mem": 8 << 30, "fgpu": 2000, "gpu": 1}


def test_version_names_muster_and_what_it_stands_on():
    assert muster("version").out.splitlines()[0].startswith("muster ")
    assert "ansible-core" in muster("version", "--json").json


@pytest.mark.parametrize("command", [[], *([name] for name in _COMMANDS)])
def test_every_command_explains_itself(command):
    answer = muster(*command, "--help")
    assert (answer.code, answer.out.startswith("Usage: muster")) == (0, True)


def test_the_completion_script_is_bash():
    text = muster("completion", "bash").out
    assert "_MUSTER_COMPLETE" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    for shell in ("zsh", "fish"):
        assert "_MUSTER_COMPLETE" in muster("completion", shell).out


def test_a_reader_that_closes_the_pipe_gets_no_traceback():
    muster("submit", "--count", "150", "-q")
    code = "from muster.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "ls", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in {0, 141}


# Anything at all


WORDS = st.one_of(
    st.sampled_from(
        ["-n", "--name", "--cpu", "--mem", "--shm", "--gpu", "--fgpu", "-e", "-v", "--role", "--count", "-N", "-t"]
    ),
    st.sampled_from(["--json", "-q", "--priority", "--on", "--type", "-f", "--schema", "--", "-c", "-i", "-g", "-m"]),
    st.sampled_from(
        ["1", "0", "-1", "1e9", "9" * 30, "A=1", "ps:2", "sub:2", "data:/data", "all", "batch", "%s", "{}"]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    st.sampled_from(["\udcff", "a\udcffb=c"]),
)


@settings(suppress_health_check=[*HealthCheck], max_examples=max(60, settings.default.max_examples))
@example(command="submit", words=["-i", "\udcff"])
@example(command="submit", words=["-n", "\udcff"])
@example(command="show", words=["\udcff"])
@example(command="submit", words=["-g", "g" * 300])
@example(command="submit", words=["--owner", "\udcff"])
@example(command="submit", words=["--count", "9" * 30])
@example(command="submit", words=["-f", "x" * 5000])
@example(command="submit", words=["x" * 5000])
@given(
    st.sampled_from(["submit", "submit", "submit", "ls", "show", "why", "cancel", "terminate"]),
    st.lists(WORDS, max_size=6),
)
def test_whatever_is_typed_gets_an_answer_and_never_a_traceback(command, words):
    answer = muster(command, *words)
    assert answer.code in {0, 1, 2}
    assert answer.code == 0 or answer.err
    assert "Traceback" not in answer.err

"""Bad input gets one clear line each and exit code 2, and nothing is half done."""

import errno
import os
from datetime import date
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.command_line import muster, nothing_queued, write_settings
from tests.properties import examples


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
        (
            ["submit", "-c", "make", "--", "true"],
            "command: 'make' is given by --command, and another one behind --; give",
        ),
        (["submit", "-c", "4", "--", "true"], "behind --; give one of them; cores are asked for by --cpu"),
        (["submit", "--count", "0"], "1 to 10000"),
        (["submit", "--count", "many"], "--count"),
        (["submit", "--nmae", "x"], "--name"),
        (["submit", "-f", "nosuch.yml"], "nosuch.yml"),
        (["submit", "-f", "/"], "cannot be read"),
        (["submit", "nosuch.sh"], "a command goes behind --"),
        (["submit", "--ssh-key", "nosuch.pub"], "--ssh-key"),
        (["submit", "--command", ""], "command: it is empty"),
        (["submit", "-e", "A"], "write a name and a value with = between them"),
        (["submit", "--begin", "soon"], "begin: 'soon' is no point in time; write 2026-11-22T08:00"),
        (["submit", "--array", "9-0"], "array: the range 9-0 ends before it begins; write indexes such as 0-99"),
        (["submit", "--label", "disk"], "labels: 'disk' has no =; write a name and a value with = between them"),
        (["submit", "--agent", "a,"], "agents: it holds an empty name"),
        (["submit", "--agent", "a", "--exclude-agent", "a"], "exclude_agents: agent a is asked for as well"),
        (["submit", "--topology", "rack"], "topology"),
        (["submit", "--after", "nosuch"], "after: there is no session 'nosuch'"),
        (["hold", "nosuch"], "there is no session"),
        (["hold"], "SESSION"),
        (["release", "nosuch"], "there is no session"),
        (["show", "nosuch"], "there is no session 'nosuch'"),
        (["why", "nosuch"], "there is no session"),
        (["logs", "nosuch"], "there is no session"),
        (["exec", "nosuch", "--", "true"], "there is no session"),
        (["run", "nosuch", "--", "true"], "there is no session"),
        (["run", "a:sub1", "--", "true"], "a:sub1 is one kernel; use `muster exec a:sub1 -- COMMAND`"),
        (["run", "a", "-n", "0", "--", "true"], "-n"),
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
        ("a: &a [*a]\n", "a value holds itself"),
    ],
)
def test_a_session_file_that_is_wrong_is_refused(tmp_path, text, said):
    path = tmp_path / "session.yml"
    path.write_text(text, encoding="utf-8")
    answer = muster("submit", "-f", str(path))
    assert answer.code == 2
    assert said in answer.err
    assert nothing_queued()


# Versions of Python say it in different words.
with pytest.raises(ValueError, match="day") as _no_such_day:
    date(2026, 2, 30)
_NO_SUCH_DAY = str(_no_such_day.value)

_MERGED = "a: &a {x: 1}\n" + "".join(
    f"{key}: &{key} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n" for before, key in pairwise("abcdefgh")
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: !!bool x", "a value is not what its tag says"),
        ("a: !!int x", "invalid literal for int()"),
        ("a: !!float ''", "a value is not what its tag says"),
        ("a: !!timestamp x", "a value is not what its tag says"),
        ("a: 2026-02-30", _NO_SUCH_DAY),
        ("a: 0x_", "invalid literal for int()"),
        ("a: " + "9" * 5000, "Exceeds the limit"),
        ('a: "\\U00110000"', "chr() arg not in range"),
        ("{a: " * 2000, "its values are nested too deeply"),
        ("? [a]\n: b", "found unhashable key"),
        ("a: \0", "special characters are not allowed"),
        (_MERGED, "its aliases (*) stand for more than 1000000 values"),
    ],
)
def test_a_file_that_is_no_yaml_is_refused_in_one_line(tmp_path, text, problem):
    files = {"session.yml": ("submit", "-f", "session.yml"), "images.yml": ("images",), "muster.yml": ("ls",)}
    for name, command in files.items():
        path = tmp_path / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(text, encoding="utf-8")
        answer = muster(*(str(path) if word == name else word for word in command))
        path.write_text(before, encoding="utf-8")
        assert (answer.code, answer.out, len(answer.errors)) == (2, "", 1)
        assert (str(path) in answer.err, problem in answer.err) == (True, True), answer.err


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
        ({"database": "nosuch://x"}, "database: a URL of nosuch cannot be opened"),
    ],
)
def test_wrong_settings_name_the_file_and_the_field(tmp_path, values, said):
    path = write_settings(tmp_path, values)
    answer = muster("ls")
    assert answer.code == 2
    assert said in answer.err
    assert "database" in values or str(path) in answer.err


def test_a_database_that_is_away_is_no_wrong_input(tmp_path):
    """A script may try again what ended with exit code 1."""
    write_settings(tmp_path, {"database": "postgresql://muster@127.0.0.1:1/muster"})
    answer = muster("ls")
    assert (answer.code, len(answer.errors)) == (1, 1)
    assert "muster@127.0.0.1:1/muster cannot be opened" in answer.err


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


@settings(examples(60), suppress_health_check=[*HealthCheck])
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
def test_any_input_gets_an_answer_and_never_a_traceback(command, words):
    answer = muster(command, *words)
    assert answer.code in {0, 1, 2}
    assert answer.code == 0 or answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "free space there"), (errno.EROFS, "mount it for writing")]
)
def test_a_disk_that_takes_no_file_is_one_line_and_no_traceback(monkeypatch, number, remedy):
    def full(*_arguments):
        raise OSError(number, os.strerror(number), "/var/lib/muster/control/ssh")

    monkeypatch.setattr("muster.settings.load_settings", full)
    answer = muster("ls")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"muster: /var/lib/muster/control/ssh cannot be written: {os.strerror(number)}; {remedy}\n"


@pytest.mark.parametrize("arguments", [("submit",), ("images",)])
def test_a_catalog_that_cannot_be_read_is_one_line_and_what_needs_it_not_goes_on(tmp_path, arguments):
    (tmp_path / "images.yml").write_text("images: [")
    answer = muster(*arguments)
    assert (answer.code, len(answer.errors)) == (2, 1)
    assert f"catalog {tmp_path / 'images.yml'} cannot be read" in answer.err
    for others in (("ls",), ("agents",), ("queue",)):
        assert muster(*others).code == 0


@pytest.mark.parametrize("words", [["submit"], ["open"], ["cp"], ["simulate"], ["secret", "set"]])
def test_examples_in_help_stand_on_lines_of_their_own(words):
    lines = muster(*words, "-h").out.splitlines()
    assert not any("\\b" in line for line in lines)
    assert any(line.startswith(f"    muster {' '.join(words)} ") for line in lines)


def test_all_errors_of_a_spec_come_at_once_nested_ones_and_those_of_the_site_too():
    answer = muster(
        *("submit", "--cpu", "lots", "--mount", "a:b:c:d", "--role", "ps:0", "--role", "w:1,cpu=many"),
        *("--app", "nosuch", "--after-ok", "nobody", "--secret", "nothing", "--agent", "a", "--exclude-agent", "a"),
        *("--callback", "http://127.0.0.1/", "--time-limit", "soon", "--mount", "someone/theirs"),
    )
    assert answer.code == 2
    fields = [line.removeprefix("muster: ").split(":")[0] for line in answer.errors]
    assert set(fields) == {
        *("cpu", "mounts[0]", "roles[0].replicas", "roles[1].cpu", "time_limit"),
        *("exclude_agents", "after_ok", "apps[0]", "callback", "secrets"),
    }
    assert nothing_queued()


def test_nothing_is_said_of_what_follows_from_a_wrong_value():
    answer = muster("submit", "--mem", "lots", "--shm", "4G", "--type", "batch", "--command", " ", "--tasks", "x")
    fields = [line.removeprefix("muster: ").split(":")[0] for line in answer.errors]
    assert fields == ["mem", "tasks", "command"]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        *((f"{name}: lab/it", f"{name}: 'lab/it' is not an absolute path; write a path that begins with /")
          for name in ("catalog", "hooks_dir", "inventory", "scheduler_plugins", "state_dir", "templates")),
        *((f"database: '{url}'", f"database: '{url}' names no file by an absolute path; write one such as sqlite:////")
          for url in ("sqlite:///muster.db", "sqlite://", "sqlite:///:memory:", "sqlite+pysqlite:///x", "sqlite")),
    ],
)  # fmt: skip
def test_settings_by_which_each_command_would_find_something_else_are_refused(tmp_path, setting, problem):
    """What is queued from one directory would not be there in another, and the daemon's is none of theirs."""
    (tmp_path / "muster.yml").write_text(f"{setting}\n", encoding="utf-8")
    answer = muster("submit", "--", "true")
    assert (answer.code, len(answer.errors)) == (2, 1)
    assert answer.err.startswith(f"muster: {tmp_path / 'muster.yml'}: {problem}")


def test_settings_that_cannot_be_are_refused_all_at_once_and_doctor_sees_them(tmp_path):
    path = tmp_path / "muster.yml"
    path.write_text(
        "ssh_port_range: 5-2\nfolders_root: srv/folders\nobserve_interval_s: often\n"
        "scheduling: {backfill: perhaps}\npids: 100\npids: 200\ncluster: A B\n"
        "resource_groups: {gpu: {order: best, placement: pack}}\n",
        encoding="utf-8",
    )
    problems = [
        "pids: it is given twice, again in line 6; give it once",
        "folders_root: 'srv/folders' is not an absolute path; write a path that begins with /",
        "ssh_port_range: '5-2' is no range of ports; write 30000-32767, for example",
        "resource_groups.gpu.order: there is no scheduler plugin 'best'; write one of drf, fair_share, ",
    ]
    answer = muster("ls")
    assert answer.code == 2
    assert all(any(line.startswith(f"muster: {path}: {problem}") for line in answer.errors) for problem in problems)
    assert len(answer.errors) == 7
    assert "; see the table of settings in docs/operations.md" in answer.err
    result = muster("doctor")
    assert result.code != 0
    assert all(problem in result.out for problem in problems)

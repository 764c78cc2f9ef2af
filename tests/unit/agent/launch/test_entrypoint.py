"""A kernel's first programs run the image's own programs, with the environment that its user gave it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from muster.ansible_gateway.templates import Templates

FILES = Path("roles/session_runtime/files")
STATE = "/run/muster-apps"
# `./dev unit` installs it where it is missing.
BUSYBOX = shutil.which("busybox", path=f"/opt/muster/runtime/bin:{os.environ['PATH']}") or "busybox"


@pytest.fixture
def standard_input():
    """Yield both ends of a pipe, which stays open: a process of `muster-run` ends with it."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def kernel(tmp_path, standard_input):
    """Return a function that runs a program of the runtime in a kernel whose image has the programs below `bin`."""
    runtime, keys, image = (tmp_path / name for name in ("runtime", "keys", "bin"))
    for directory in (runtime / "bin", runtime / "sbin", keys, image):
        directory.mkdir(parents=True)
    (runtime / "bin/busybox").symlink_to(BUSYBOX)
    _script(runtime / "sbin/sshd", "exit 0")
    (keys / "sshd_config").touch()
    (keys / "go").touch()

    def run(program: str, /, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        text = (FILES / program).read_text("utf-8")
        script = runtime / "bin" / program
        script.write_text(text.replace("@RUNTIME@", str(runtime)).replace("/run/muster/", f"{keys}/"), "utf-8")
        return subprocess.run(
            [BUSYBOX, "sh", str(script), *arguments],
            stdin=standard_input[0],
            env={"HOME": str(tmp_path), "PATH": f"{image}:/usr/bin:/bin", **environment},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize("file", ["", "output"])
def test_a_command_is_the_images_program_where_busybox_has_one_of_its_name(kernel, tmp_path, file):
    _script(tmp_path / "bin/tar", 'echo "the image, $*"')
    if file:
        (tmp_path / "keys" / file).write_text(str(tmp_path / "copy"))
    done = kernel("entrypoint", "tar", "a  b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "the image, a  b\n", "")


def test_a_command_line_runs_the_images_programs(kernel, tmp_path):
    _script(tmp_path / "bin/grep", "echo the image")
    done = kernel("entrypoint", "sh", "-c", "grep --perl-regexp x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "the image\n", "")


def test_a_bootstrap_script_without_a_first_line_runs_the_images_programs(kernel, tmp_path):
    _script(tmp_path / "bin/sed", "echo the image")
    (tmp_path / "keys/bootstrap").write_text("sed --sandbox\n")
    done = kernel("entrypoint", "/bin/true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "the image\n", "")


@pytest.mark.parametrize("name", ["no-such-program", "ar", "/no/such/program", "-x"])
def test_a_program_that_the_image_lacks_is_named(kernel, name):
    done = kernel("entrypoint", name, PATH="/nowhere")
    assert (done.returncode, done.stderr) == (127, f"muster: {name}: no such command in this image\n")


def test_a_process_of_muster_run_is_the_images_program(kernel, tmp_path, standard_input):
    _script(tmp_path / "bin/tar", 'echo "the image, $*"')
    os.write(standard_input[1], b"set -- 'tar' 'a  b'\n#muster-run: begin\n")
    done = kernel("muster-run", "--task")
    assert (done.returncode, done.stdout, done.stderr) == (0, "the image, a  b\n", "")


def test_a_process_of_muster_run_that_the_image_lacks_is_named(kernel, standard_input):
    os.write(standard_input[1], b"set -- 'ar'\n#muster-run: begin\n")
    done = kernel("muster-run", "--task", PATH="/nowhere")
    assert (done.returncode, done.stderr) == (127, "muster-run: ar: no such command in this image\n")


# Ordinary names, in the entrypoint's own words.
OF_THE_USER = [
    *("busybox", "command", "config", "copies", "file", "left", "limits", "name", "path", "port", "program"),
    *("runtime", "signal", "state", "status", "value", "variable", "wake", "workdir"),
]
SHOW = "env | sort | grep =mine"


@pytest.mark.parametrize("file", ["", "output"])
def test_a_command_gets_each_of_the_users_variables_as_they_set_it(kernel, tmp_path, file):
    (tmp_path / "keys/bootstrap").write_text(":\n")
    (tmp_path / "keys/workdir").write_text(str(tmp_path))
    (tmp_path / "keys/secrets").mkdir()
    (tmp_path / "keys/secrets/key").write_text("hush")
    (tmp_path / "keys/secret_env").write_text("SECRET key\n")
    if file:
        (tmp_path / "keys" / file).write_text(str(tmp_path / "copy"))
    done = kernel("entrypoint", "sh", "-c", f"{SHOW}; echo $SECRET", **dict.fromkeys(OF_THE_USER, "mine"))
    assert done.stdout.split() == [*(f"{name}=mine" for name in OF_THE_USER), "hush"]


@pytest.fixture
def app(kernel, tmp_path):
    """Return a function that runs an app in a kernel with these variables and returns its exit code and its log."""

    def run(command: str, /, **environment: str) -> tuple[str, str]:
        state = tmp_path / "state"
        state.mkdir()
        (tmp_path / "keys/app-web").write_text(f"{command}\n")
        text = Templates().render("apps", {"apps": ["web 8000"], "runtime_path": str(tmp_path / "runtime")})
        text = text.replace("/run/muster/", f"{tmp_path}/keys/").replace(STATE, str(state))
        (tmp_path / "keys/apps").write_text(text)
        ended = f"until [ -s {state}/web.exit ] && [ -s {state}/web.log ]; do sleep 0.05; done"
        kernel("entrypoint", "sh", "-c", ended, **environment)
        return (state / "web.exit").read_text(), (state / "web.log").read_text()

    return run


def test_an_app_runs_the_images_programs(app, tmp_path):
    _script(tmp_path / "bin/uptime", 'echo "the image at $MUSTER_APP_PORT"')
    assert app("uptime") == ("0\n", "the image at 8000\n")


def test_an_app_gets_each_of_the_users_variables_as_they_set_it(app):
    exit_code, log = app(SHOW, **dict.fromkeys(OF_THE_USER, "mine"))
    assert (exit_code, log.split()) == ("0\n", [f"{name}=mine" for name in OF_THE_USER])


@pytest.mark.parametrize(
    ("directory", "why"), [("/nowhere", "No such file or directory"), ("/etc/passwd", "Not a directory")]
)
def test_a_working_directory_that_cannot_be_entered_is_said_in_one_line(kernel, tmp_path, directory, why):
    (tmp_path / "keys/workdir").write_text(directory)
    done = kernel("entrypoint", "echo", "never")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == (
        f"muster: the working directory {directory} cannot be entered ({why});"
        " make it in the bootstrap script, or name another\n"
    )


@pytest.mark.parametrize("program", ["entrypoint", "muster-run", "scontrol"])
def test_no_replacement_by_busyboxs_awk_has_a_backslash(program):
    """Busybox 1.37, which Debian 13 has, takes it away, and 1.35 keeps it: quotes of a command were not closed."""
    assert re.findall(r'\bg?sub\([^)\n]*"\\\\', (FILES / program).read_text("utf-8")) == []


def test_muster_run_gives_each_word_as_it_is(kernel, tmp_path):
    _script(tmp_path / "runtime/bin/ssh", f'shift 3\nexec {BUSYBOX} sh "$@"')
    words = ["a  b", "it's", "'", "''", "x'", "", "$x", "a\\b", "two\nlines", "-n"]
    cluster = {"BACKENDAI_CLUSTER_HOSTS": "main1", "BACKENDAI_CLUSTER_SIZE": "1"}
    done = kernel("muster-run", "python3", "-c", "import sys; print(sys.argv[1:])", *words, **cluster)
    assert (done.returncode, done.stdout) == (0, f"main1: {words}\n"), done.stderr

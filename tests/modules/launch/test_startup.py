"""What the entrypoint does between a kernel's release and its command."""

import subprocess

import pytest

from muster.core.spec.mounts import HOME
from tests.modules.agent_code import agent_names
from tests.modules.cluster_on_host import IMAGE, RUNTIME, desired, key_files, log_of, log_with, session

HUSH = "hush, a secret"


def with_files(command=(), kernels=("main1",), **files):
    """Return a session whose kernels have these start-up files: texts by name, `__` for `/`."""
    own = {name.replace("__", "/"): content for name, content in files.items()}
    modes = {"bootstrap": "0755", "secret_env": "0400", "secret_links": "0400"}
    entries = {
        name: {"content": content, "mode": "0400" if "/" in name else modes.get(name, "0444")}
        for name, content in own.items()
    }
    return session(kernels, command=list(command), files={**key_files(kernels), **entries})


def end_of(cluster, entry):
    """Return the last words of main1, once its command has ended by itself."""
    while any(kernel["state"] == "running" for kernel in cluster.report()["kernels"]):
        continue
    (words,) = cluster.converge(desired(entry, "stop"))["last_words"]
    return words["exit_code"], log_of(words)


def ran(cluster, entry):
    cluster.converge(entry)
    return end_of(cluster, entry)


SHOW = ("sh", "-c", "pwd; cat; echo done")


def test_a_command_begins_after_the_bootstrap_script_in_its_directory_with_its_input(cluster):
    entry = with_files(
        SHOW,
        bootstrap="#!/bin/sh\necho first; cat; mkdir -p ~/a\\ b; exit 0\n",
        workdir=f"{HOME}/a b",
        stdin="rows\n",
    )
    assert ran(cluster, entry) == (0, f"first\n{HOME}/a b\nrows\ndone\n")


def test_a_bootstrap_script_without_a_first_line_is_run_by_sh(cluster):
    entry = with_files(("sh", "-c", "cat made"), bootstrap="echo by sh > ~/made\n")
    assert ran(cluster, entry) == (0, "by sh\n")


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ({"bootstrap": "exit 9"}, 9, "muster: the bootstrap script ended with exit code 9"),
        ({"workdir": "/nowhere"}, 125, "muster: the working directory /nowhere cannot be entered"),
        (
            {"secrets__token": HUSH, "secret_links": "token /etc/token\n"},
            125,
            "muster: secret token cannot be put at /etc/token",
        ),
        (
            {"secrets__token": HUSH, "secret_links": "token /etc/passwd\n"},
            125,
            "muster: secret token is to be at /etc/passwd, but something is there already",
        ),
    ],
)
def test_a_start_that_fails_ends_the_kernel_with_one_clear_line(cluster, files, code, says):
    ended, log = ran(cluster, with_files(("echo", "never"), **files))
    assert ended == code
    assert log.count("muster: ") == 1
    assert says in log
    assert "never" not in log
    assert HUSH not in log


def test_a_secret_is_a_file_a_variable_and_a_link_and_in_no_login_or_inspection(cluster):
    entry = with_files(
        ("sh", "-c", "echo $TOKEN; cat .config/token; exec sleep 1000"),
        secrets__token=f"{HUSH}\n",
        secret_env="TOKEN token\n",
        secret_links=f"token {HOME}/.config/token\n",
    )
    cluster.converge(entry)
    container = cluster.report()["kernels"][0]["container_id"]
    assert HUSH not in str(cluster.engine.container(container))
    assert "TOKEN" not in cluster.run_in(entry, "main1", "ssh", "main1", "env")
    mode = "until [ -L .config/token ]; do sleep 0.1; done; cd /run/muster; stat -c '%a %u' secrets secrets/token"
    assert cluster.run_in(entry, "main1", "sh", "-c", mode) == "700 1000\n400 1000"
    assert log_with(cluster, container, f"{HUSH}\n{HUSH}\n".encode()).decode() == f"{HUSH}\n{HUSH}\n"
    cluster.converge(desired(entry, "stop"))
    assert cluster.key_directories() == []


def test_a_kernel_without_a_command_runs_the_bootstrap_script_and_goes_on(cluster):
    entry = with_files(kernels=("main1", "sub1"), bootstrap="echo here > ~/made\n")
    cluster.converge(entry)
    for kernel in ("main1", "sub1"):
        there = "until [ -s ~/made ]; do sleep 0.1; done; cat ~/made"
        assert cluster.run_in(entry, kernel, "sh", "-c", there) == "here"
    assert [kernel["state"] for kernel in cluster.report()["kernels"]] == ["running", "running"]


def test_a_kernel_is_stopped_at_once_while_its_bootstrap_script_runs(cluster):
    entry = with_files(("echo", "never"), bootstrap="sleep 1000")
    cluster.converge(entry)
    (words,) = cluster.converge(desired(entry, "stop"), stop_grace_s=60)["last_words"]
    assert words["exit_code"] == 143
    assert "never" not in log_of(words)


def test_secrets_of_an_earlier_launch_are_gone_in_the_next(cluster):
    entry = with_files(("sleep", "1000"), secrets__old=HUSH)
    cluster.converge(entry)
    later = with_files(("sleep", "1000"), secrets__new=HUSH)
    kernel = {**entry["kernels"][0], "files": later["kernels"][0]["files"]}
    cluster.generation = 2
    cluster.converge({**entry, "generation": 2, "kernels": [kernel]})
    assert cluster.run_in(entry, "main1", "ls", "/run/muster/secrets") == "new"


@pytest.mark.parametrize(("lowest_port", "listens"), [(0, "2200 22"), (1024, "2200")])
def test_sshd_listens_on_further_ports_as_far_as_its_user_may(cluster, lowest_port, listens):
    """An engine before Docker 20.10 is imitated by the setting that containers have there."""
    gang = with_files(ssh_ports="22\n")
    cluster.converge(gang)
    keys = cluster.paths.kernel_keys(gang["id"], "main1")
    (keys / "go").touch()
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--user", "1000", "--cap-drop", "ALL", "--network", "none"),
            *("--sysctl", f"net.ipv4.ip_unprivileged_port_start={lowest_port}"),
            *("--volume", f"{RUNTIME}:{RUNTIME}:ro", "--volume", f"{keys}:/run/muster:ro"),
            *("--entrypoint", f"{RUNTIME}/bin/entrypoint", IMAGE, "/bin/busybox", "sh", "-c", LISTENING),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert sorted(done.stdout.split()) == sorted(listens.split())
    assert done.stderr == ""


# sshd binds the further ports first, and that of its configuration last.
LISTENING = """
busybox=/bin/busybox
until $busybox netstat -ltn | $busybox grep -q '0.0.0.0:2200 '; do $busybox sleep 0.05; done
$busybox netstat -ltn | $busybox awk '/^tcp .*0\\.0\\.0\\.0:/ { sub(".*:", "", $4); print $4 }'
"""


def test_a_command_begins_where_an_older_control_node_has_made_no_pipe(cluster):
    entry = with_files(("sh", "-c", "echo begun"))
    name = agent_names.container_name(entry["id"], "main1")
    cluster.converge({**entry, "release": False})
    keys = cluster.paths.kernel_keys(entry["id"], "main1")
    (keys / "wake").unlink()
    subprocess.run(["docker", "restart", "--time", "0", name], check=True, capture_output=True)
    (keys / "go").write_text(str(entry["generation"]), encoding="ascii")
    assert end_of(cluster, entry) == (0, "begun\n")


# It ends while the entrypoint is stopped, which then learns of a signal and of the end at once.
ENDING_WITH_A_SIGNAL = """
trap '' USR1
(until grep -q '^State:.Z' /proc/$$/status; do sleep 0.05; done; kill -CONT $PPID) &
kill -STOP $PPID
kill -USR1 $PPID
exit 7
"""


def test_a_command_with_a_file_keeps_its_exit_code_where_a_signal_meets_its_end(cluster):
    entry = with_files(("sh", "-c", ENDING_WITH_A_SIGNAL), output=f"{HOME}/all")
    assert ran(cluster, entry) == (7, "")


# Nobody reads what is written to the file of the standard error before the command has ended.
SLOW_FILE = """
mkfifo ~/error
(exec 3<>~/error; sleep 2; cat <&3 >/dev/null) &
until [ -e /proc/$!/fd/3 ]; do sleep 0.05; done
"""
# More than the file's pipe holds, and less than it and the pipe to the copying program hold together.
MUCH_ON_STANDARD_ERROR = "head -c 100000 /dev/zero | tr '\\0' x >&2; echo end >&2"


def test_a_kernel_ends_once_all_of_its_commands_output_is_copied(cluster):
    entry = with_files(
        ("sh", "-c", MUCH_ON_STANDARD_ERROR), bootstrap=SLOW_FILE, output=f"{HOME}/all", error=f"{HOME}/error"
    )
    code, log = ran(cluster, entry)
    assert (code, log[-5:]) == (0, "xend\n")

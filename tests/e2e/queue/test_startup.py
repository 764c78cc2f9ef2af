"""How kernels begin, what they are given in secret, and files in and out of them."""

import io
import os
import shlex
import subprocess
import tarfile
from pathlib import Path

import docker
import pytest

from muster.core.spec.mounts import HOME
from tests.control_node import SMALL, ControlNode

TOKEN = "hush-5ac1e0f7-nobody-may-read-this"
BOOTSTRAP = """#!/bin/sh
mkdir -p ~/project
echo "bootstrap in $BACKENDAI_CLUSTER_HOST with $API_TOKEN" >> ~/begun
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    (directory / "bootstrap.sh").write_text(BOOTSTRAP)
    (directory / "bad.sh").write_text("echo about to fail\nexit 7\n")
    (directory / "vars.env").write_text("# of a file\nEPOCHS=3\nMODE=file\n")
    (directory / "rows.csv").write_text("a,b\n1,2\n")
    return directory


@pytest.fixture(scope="module")
def gang(node: ControlNode, files: Path) -> str:
    """Return two kernels that run, with a bootstrap script, a secret and a key that may log in."""
    node.run("secret", "set", "token", stdin=f"{TOKEN}\n")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", files / "mine"], check=True)
    return node.start(
        *("--cluster-size", "2", "--bootstrap", str(files / "bootstrap.sh"), "--workdir", f"{HOME}/project"),
        *("--secret", "token=API_TOKEN", "--secret", f"token:{HOME}/.config/app/token"),
        *("--on", "all", "--ssh-key", str(files / "mine.pub")),
        *("-c", "pwd > ~/where; echo $API_TOKEN > /tmp/seen; exec sleep 7200"),
    )


def in_kernel(node: ControlNode, reference: str, script: str) -> str:
    return node.exec(reference, "sh", "-c", script).out


def test_every_kernel_runs_the_bootstrap_script_first_and_its_command_in_the_working_directory(node, gang):
    wait = "until [ -s /tmp/seen ]; do sleep 0.1; done; cat ~/begun ~/where"
    for kernel in ("main1", "sub1"):
        said = in_kernel(node, f"{gang}:{kernel}", wait)
        assert said == f"bootstrap in {kernel} with {TOKEN}\n{HOME}/project\n"


def test_a_secret_is_a_file_of_the_user_alone_at_the_requested_path(node, gang):
    there = "until [ -s /tmp/seen ]; do sleep 0.1; done; stat -c '%a %u' /run/muster/secrets/token"
    assert in_kernel(node, gang, there) == "400 1000\n"
    assert in_kernel(node, gang, "cat ~/.config/app/token /tmp/seen") == f"{TOKEN}{TOKEN}\n"
    assert node.exec(gang, "sh", "-c", "echo -n $API_TOKEN").out == ""


def test_a_secret_is_in_no_inspection_log_database_or_artifact(node, gang):
    for container in docker.from_env().containers.list(filters={"label": f"muster.cluster={node.cluster}"}):
        assert TOKEN not in str(container.attrs)
    assert TOKEN not in node.run("show", gang, "--json").out + node.run("secret", "ls").out
    assert "token" in node.run("secret", "ls").out
    places = [node.directory, Path("/var/lib/muster/agent") / node.cluster]
    found = subprocess.run(["grep", "-rlaF", TOKEN, *places], capture_output=True, text=True, check=False)
    assert found.stdout == ""
    # The key that sealed it belongs to the control node alone.
    assert (node.directory / "state" / "secrets.key").stat().st_mode & 0o777 == 0o600


def test_each_impossible_start_up_option_gets_one_line(node, files):
    refused = node.run(
        "submit", "--secret", "nothing", "--workdir", "here", "--input", "-", "--callback", "x", check=False
    )
    assert refused.code == 2
    fields = [line.split(": ")[1] for line in refused.err.splitlines()]
    assert sorted(fields) == ["callback", "input", "secrets", "workdir"]
    missing = node.run("submit", "--secret", "nothing", check=False)
    assert (missing.code, "muster secret set nothing" in missing.err) == (2, True)
    assert node.run("submit", "--bootstrap", str(files / "none"), check=False).code == 2
    assert node.run("secret", "rm", "nothing", check=False).code == 2
    (files / "broken.env").write_text("not a variable\n")
    broken = node.run("submit", "--env-file", str(files / "broken.env"), check=False)
    assert (broken.code, "broken.env:1" in broken.err) == (2, True)


def test_a_command_reads_its_input_and_has_the_variables_of_a_file(node, files):
    name = node.submit(
        *(*SMALL, "--input", str(files / "rows.csv"), "--env-file", str(files / "vars.env"), "-e", "MODE=flag"),
        *("-c", "cat; echo $EPOCHS $MODE"),
    )
    node.reaches(name, "TERMINATED")
    assert node.run("logs", name).out == "a,b\n1,2\n3 flag\n"


def test_a_bootstrap_script_that_fails_ends_the_session_with_its_exit_code(node, files):
    name = node.submit(*SMALL, "--bootstrap", str(files / "bad.sh"), "-c", "echo never")
    shown = node.reaches(name, "TERMINATED")
    assert (shown["result"], shown["exit_code"]) == ("FAILURE", 7)
    log = node.run("logs", name).out
    assert "about to fail" in log
    assert "the bootstrap script ended with exit code 7" in log
    assert "never" not in log.splitlines()


def test_files_are_copied_in_and_out(node, gang, tmp_path):
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "data.bin").write_bytes(os.urandom(3 << 20))
    (tree / "link").symlink_to("deep/data.bin")
    node.run("cp", str(tree), f"{gang}:")
    assert in_kernel(node, gang, "stat -c '%u %n' tree/deep/data.bin; readlink tree/link") == (
        "1000 tree/deep/data.bin\ndeep/data.bin\n"
    )
    node.run("cp", f"{gang}:tree", str(tmp_path / "back"))
    assert (tmp_path / "back" / "deep" / "data.bin").read_bytes() == (tree / "deep" / "data.bin").read_bytes()
    assert str((tmp_path / "back" / "link").readlink()) == "deep/data.bin"
    # One file, under another name, into memory, to another kernel.
    (tmp_path / "note").write_text("hello\n")
    node.run("cp", str(tmp_path / "note"), f"{gang}:sub1:/dev/shm/renamed")
    node.run("cp", f"{gang}:sub1:/dev/shm/renamed", str(tmp_path))
    assert (tmp_path / "renamed").read_text() == "hello\n"


def test_a_copy_writes_nothing_outside_of_it(node, gang, tmp_path):
    in_kernel(
        node, gang, "mkdir -p trap && ln -sfn /etc/passwd trap/away && ln -sfn ../../up trap/up && echo x > trap/in"
    )
    done = node.run("cp", f"{gang}:trap", str(tmp_path))
    assert [path.name for path in (tmp_path / "trap").iterdir()] == ["in"]
    assert done.err.count("left out") == 2


def test_a_tar_stream_goes_both_ways(node, gang):
    # The command line's streams are text in these tests, and so is this archive.
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("streamed")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"abc"))
    node.run("cp", "-", f"{gang}:/tmp", stdin=archive.getvalue().decode())
    out = node.run("cp", f"{gang}:/tmp/streamed", "-").out
    with tarfile.open(fileobj=io.BytesIO(out.encode())) as tar:
        assert tar.extractfile("./streamed").read() == b"abc"


@pytest.mark.parametrize(
    ("source", "destination", "says"),
    [
        ("a", "b", "neither"),
        ("{gang}:a", "{gang}:b", "both"),
        ("{gang}:nowhere", ".", "does not exist there"),
        ("/nowhere", "{gang}:", "does not exist here"),
        ("/etc/hostname", "{gang}:/nowhere/x", "no directory there"),
        ("/etc/hostname", "{gang}:sub9:x", "no container"),
        ("/etc/hostname", ":x", "names no session"),
        ("nobody:x", ".", "no session"),
    ],
)
def test_a_wrong_copy_gets_one_line(node, gang, source, destination, says):
    done = node.run("cp", source.format(gang=gang), destination.format(gang=gang), check=False)
    assert (done.code, says in done.err, len(done.err.splitlines())) == (2, True, 1)


def test_a_copy_that_the_user_may_not_make_fails_with_the_reason(node, gang):
    done = node.run("cp", "/etc/hostname", f"{gang}:/etc/mine", check=False)
    assert (done.code, "ermission denied" in done.err) == (1, True)


def test_scp_takes_the_printed_command(node, gang, files, tmp_path):
    printed = shlex.split(node.run("ssh", gang, "--print").out)
    port, target = printed[printed.index("-p") + 1], printed[-1]
    options = [
        *("-i", files / "mine"),
        *("-o", "StrictHostKeyChecking=no"),
        *("-o", f"UserKnownHostsFile={tmp_path}/known"),
    ]
    (tmp_path / "sent").write_text("by scp\n")
    scp = ["scp", "-q", *options, "-P", port]
    subprocess.run([*scp, tmp_path / "sent", f"{target}:sent"], check=True)
    subprocess.run([*scp, f"{target}:sent", tmp_path / "back"], check=True)
    assert (tmp_path / "back").read_text() == "by scp\n"

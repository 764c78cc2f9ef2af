"""Data folders with an owner: made, shared, mounted, removed."""

import os

import pytest

from muster.core.spec.mounts import HOME
from tests.control_node import SMALL, ControlNode

ADA, BOB = ("--owner", "ada"), ("--owner", "bob")


@pytest.fixture(scope="module")
def quiet_node(new_node) -> ControlNode:
    """Return a control node whose queue is worked by hand, with two users that have uids of their own."""
    node = new_node(owner_uids={"ada": 4711, "bob": 4712})
    node.run("pass")
    return node


@pytest.fixture(scope="module")
def sessions(quiet_node) -> dict[str, str]:
    """Return the sessions after one pass: of ada, of bob, and of ada without her dot folders."""
    node = quiet_node
    for name in ("data", "papers", ".local", "hidden"):
        node.run("folder", "create", name, *ADA)
    node.run("folder", "create", "small", "--quota", "1M", *ADA)
    node.run("folder", "share", "data", "bob", "--rw", *ADA)
    node.run("folder", "share", "papers", "@vision", *ADA)
    plain = node.folders / "plain"
    plain.mkdir()
    os.chown(plain, 4712, 4712)
    (plain / "in").symlink_to(node.folders / folder(node, "hidden", *ADA)["path"])
    (plain / "up").symlink_to("..")
    requested = {
        "hers": (*ADA, "--cluster-size", "2", "-v", "data", "-v", "papers", "-v", "small"),
        "his": (*BOB, "-P", "vision", "-v", "ada/data:/data", "-v", "papers", "-v", "plain"),
        "bare": (*ADA, "--no-dot-folders"),
        "in": (*BOB, "-v", "plain/in:/data"),
        "up": (*BOB, "-v", "plain/up:/data"),
    }
    names = {key: node.submit(*SMALL, *arguments) for key, arguments in requested.items()}
    node.run("pass", "--wait")
    return names


def folder(node: ControlNode, name: str, *arguments: str) -> dict:
    return node.run("folder", "show", name, *arguments, "--json").json()


def test_folders_are_shared_read_write_and_read_only_between_users_of_different_uids(quiet_node, sessions):
    node, hers, his = quiet_node, sessions["hers"], sessions["his"]
    for name in (hers, his):
        node.reaches(name, "RUNNING")
    node.exec(f"{hers}:sub1", "sh", "-c", "umask 077; mkdir data/deep; echo one > data/deep/one; echo two > papers/two")
    node.exec(his, "sh", "-c", "cat /data/deep/one papers/two; echo more >> /data/deep/one; touch /data/deep/his")
    assert node.exec(hers, "cat", "data/deep/one").out == "one\nmore\n"
    refused = node.exec(his, "sh", "-c", "echo no > papers/two", check=False)
    assert (refused.code != 0, "Read-only" in refused.err) == (True, True)
    found = folder(node, "data", *ADA)
    assert found["shared_with"] == [{"grantee": "bob", "read_only": False}]
    assert (found["files"], found["used_bytes"] > 0) == (3, True)
    assert [f["name"] for f in node.run("folder", "ls", *BOB, "--no-size", "--json").json()] == ["data"]


def test_a_folder_with_a_dot_is_in_every_session_of_its_owner_unless_they_do_without(quiet_node, sessions):
    node = quiet_node
    node.exec(f"{sessions['hers']}:sub1", "sh", "-c", "mkdir -p .local/bin; echo hers > .local/bin/tool")
    assert node.exec(sessions["hers"], "cat", f"{HOME}/.local/bin/tool").out == "hers\n"
    for key in ("bare", "his"):
        assert node.exec(sessions[key], "test", "-e", f"{HOME}/.local", check=False).code == 1


def test_a_link_in_a_plain_directory_leads_into_nobodys_folder(quiet_node, sessions):
    for key in ("in", "up"):
        reason = quiet_node.reaches(sessions[key], "ERROR")["reason"]
        assert "leads to where folders with an owner are kept" in reason


def test_a_quota_is_enforced_or_reported_as_not_enforced(quiet_node, sessions):
    node = quiet_node
    shown = node.run("folder", "show", "small", *ADA, "--json")
    unenforced = shown.json()["quota_not_enforced"]
    assert shown.json()["quota_bytes"] == 1 << 20
    assert ("the quota is not enforced here: " in shown.err) == bool(unenforced)
    done = node.exec(sessions["hers"], "sh", "-c", "head -c 2M /dev/zero > small/two", check=False)
    assert (done.code == 0) == bool(unenforced), done.err
    assert ("1M (not enforced)" in node.run("folder", "ls", *ADA).out) == bool(unenforced)
    assert node.run("folder", "quota", "small", "none", *ADA, "--json").json()["quota_bytes"] is None


def test_a_folder_is_removed_once_no_session_mounts_it(quiet_node, sessions):
    node, hers, his = quiet_node, sessions["hers"], sessions["his"]
    in_the_way = node.run("folder", "rm", "data", "--yes", *ADA, check=False)
    assert in_the_way.code == 1
    assert in_the_way.err == f"muster: folder data is in use by {', '.join(sorted([hers, his]))}; end them first\n"
    kept = node.run("folder", "unshare", "data", "bob", *ADA)
    assert kept.err == f"sessions of others that mount it until they end: {his}\n"
    place = node.folders / folder(node, "data", *ADA)["path"]

    node.run("terminate", hers, his, sessions["bare"])
    node.run("pass", "--wait")
    assert (place / "deep" / "one").read_text() == "one\nmore\n"
    assert node.run("folder", "rm", "data", "--yes", *ADA).out == "Removed data\n"
    assert not place.exists()
    assert list((node.folders / ".muster" / "trash").iterdir()) == []
    assert "data" not in [f["name"] for f in node.run("folder", "ls", *ADA, "--no-size", "--json").json()]


@pytest.mark.parametrize(
    ("mounts", "field", "problem"),
    [
        (("ada/secret",), "mounts[0].folder", "folder ada/secret is not shared with bob"),
        (("notes:rw",), "mounts[0].folder", "folder ada/notes is shared with bob read-only"),
        ((".muster/folders/ada",), "mounts[0].folder", "'.muster/folders/ada' is where folders with an owner are kept"),
        (("x/../.muster",), "mounts[0].folder", "without .."),
    ],
)
def test_forbidden_mounts_are_refused_at_submit(quiet_node, mounts, field, problem):
    node = quiet_node
    for name in ("secret", "notes"):
        node.run("folder", "create", name, *ADA, check=False)
    node.run("folder", "share", "notes", "bob", *ADA)
    done = node.run("submit", *SMALL, *BOB, *(word for mount in mounts for word in ("-v", mount)), check=False)
    assert done.code == 2
    assert done.err.startswith(f"muster: {field}: ")
    assert problem in done.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("create", "../up"), "NAME: '../up' is not a folder's name; "),
        (("create", "."), "NAME: '.' is not a folder's name; "),
        (("create", "x", "--quota", "much"), "--quota: 'much' is not an amount of bytes; "),
        (("create", "x", "--quota", "1K"), "--quota: 1024 bytes are too few; "),
        (("create", "x", "--owner", "../bob"), "--owner: '../bob' cannot own folders; "),
        (("create", "notes", *ADA), "ada has a folder 'notes' already; "),
        (("show", "nothing", *ADA), "ada has no folder 'nothing'; "),
        (("share", "notes", "ada", *ADA), "WHOM: ada owns the folder; "),
        (("share", "notes", "@", *ADA), "WHOM: '@' names nobody; "),
        (("unshare", "notes", "eve", *ADA), "folder notes is not shared with eve; "),
        (("rm", "notes", *ADA), "--yes: there is no terminal to confirm on "),
    ],
)
def test_a_wrong_word_gets_one_clear_line(quiet_node, arguments, line):
    quiet_node.run("folder", "create", "notes", *ADA, check=False)
    done = quiet_node.run("folder", *arguments, check=False)
    assert done.code == 2
    assert done.err.startswith(f"muster: {line}")
    assert done.err.count("\n") == 1

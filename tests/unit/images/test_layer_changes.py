"""What of a container's layer goes into an image: everything of the user's, nothing of ours, no key, no mount."""

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.images.layer_changes import Entry, kept
from tests.properties import dear

KEYS = ("/home/ada/.ssh", "/data/.ssh")
MOUNTS = ("/home/ada/data", "/mnt/deep/data")
OURS = (
    "run/muster",
    "etc/passwd",
    "opt/muster",
    "home/ada/data",
    "mnt/deep/data",
    "home/ada/.ssh",
    "dev",
    "etc/hosts",
)
THEIRS = ("home/ada/results", "usr/local", "srv", "etc/muster.d", "home/ada/database", "run/mustering")
PARTS = st.lists(st.sampled_from(["a", "b.txt", "c"]), max_size=3).map("/".join)


def tree(paths):
    """Return files with the directories above them, as an archive has them."""
    directories = {parent for path in paths for parent in parents(path)}
    return [Entry(f"{path}/", is_directory=True) for path in sorted(directories)] + [Entry(path) for path in paths]


def parents(path):
    while path := posixpath.dirname(path):
        yield path


def below(root):
    return PARTS.map(lambda rest: posixpath.join(root, rest, "file"))


@dear
@given(
    ours=st.sets(st.sampled_from(OURS).flatmap(below), max_size=6),
    theirs=st.sets(st.sampled_from(THEIRS).flatmap(below), max_size=6),
)
def test_files_of_the_users_stay_with_their_directories_and_no_other(ours, theirs):
    names = kept(tree([*ours, *theirs]), MOUNTS, KEYS)
    assert {name for name in names if not name.endswith("/")} == theirs
    assert {name.rstrip("/") for name in names if name.endswith("/")} == {p for path in theirs for p in parents(path)}


@pytest.mark.parametrize(
    "entry",
    [
        Entry("home/ada/key", target="/run/muster/id_ed25519", is_symlink=True),
        Entry("home/ada/key", target="../../run/muster/secrets/token", is_symlink=True),
        Entry("home/ada/hard", target="home/ada/.ssh/id_rsa"),
        Entry("etc/.wh.passwd"),
        Entry("./run/muster/"),
        Entry("home/ada/.ssh/id_rsa"),
        Entry("data/.ssh/id_rsa"),
        Entry("usr/sbin/docker-init"),
    ],
)
def test_paths_to_keys_and_those_of_muster_are_left_out(entry):
    assert kept([entry], MOUNTS, KEYS) == set()


@pytest.mark.parametrize(
    "entry",
    [
        Entry("home/ada/link", target="data/numbers.txt", is_symlink=True),
        Entry("srv/.wh.old"),
        Entry("srv/.wh..wh..opq"),
        Entry("var/empty/", is_directory=True),
    ],
)
def test_the_users_changes_stay(entry):
    assert kept([entry], MOUNTS, KEYS) == {entry.name}

"""A new tree beside the old, and the link that leads to one of them at any moment."""

import os
import time
from pathlib import Path

import pytest

from tests.modules.agent_code import versioned_trees

BUILDING = versioned_trees.BUILDING


def made(path: Path, version: str, text: str = "") -> Path:
    """Return a tree as a build leaves it."""
    work = path.with_name(f"{path.name}-versions") / f"{BUILDING}{version}"
    tree = work / "tree"
    tree.mkdir(parents=True)
    (work / "downloads").mkdir()
    (tree / "VERSION").write_text(f"{version}\n{text}")
    (tree / "program").write_text(version)
    return tree


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "muster" / "runtime"


def beside(path: Path) -> list[str]:
    return sorted(tree.name for tree in path.with_name("runtime-versions").iterdir() if tree.is_dir())


def test_the_link_leads_to_the_new_tree_and_the_old_one_goes(path):
    assert versioned_trees.switch_over(path, made(path, "one")) == "one"
    assert path.readlink() == Path("runtime-versions/one")
    assert versioned_trees.switch_over(path, made(path, "two", "a=1\n")) == "two"
    assert (path / "program").read_text() == "two"
    assert beside(path) == ["two"]


def test_all_users_may_pass_to_the_trees_though_root_hides_what_it_makes(path):
    before = os.umask(0o077)
    try:
        versioned_trees.new_tree(path, lambda work: work)
    finally:
        os.umask(before)
    made_directories = (path.parent, path.with_name("runtime-versions"))
    assert [oct(directory.stat().st_mode & 0o777) for directory in made_directories] == ["0o755", "0o755"]


def test_a_tree_that_is_mounted_stays(path, monkeypatch):
    versioned_trees.switch_over(path, made(path, "one"))
    monkeypatch.setattr(versioned_trees, "_mounted", lambda: {"muster", "runtime-versions", "one", "lib"})
    versioned_trees.switch_over(path, made(path, "two"))
    assert beside(path) == ["one", "two"]


def test_a_whole_tree_is_never_made_again(path):
    versioned_trees.switch_over(path, made(path, "one"))
    first = (path / "program").stat().st_ino
    versioned_trees.switch_over(path, made(path, "one"))
    assert (path / "program").stat().st_ino == first
    assert beside(path) == ["one"]


def test_a_damaged_tree_is_replaced_and_kept_for_kernels_that_run_from_it(path, monkeypatch):
    versioned_trees.switch_over(path, made(path, "one", "a=1\n"))
    (path / "VERSION").write_text("")
    running = (path / "program").stat().st_ino
    monkeypatch.setattr(versioned_trees, "_mounted", lambda: set(beside(path)))
    versioned_trees.switch_over(path, made(path, "one", "a=1\n"))
    assert (path / "VERSION").read_text() == "one\na=1\n"
    damaged = [name for name in beside(path) if name.startswith(".damaged-")]
    assert [(path.resolve().parent / name / "program").stat().st_ino for name in damaged] == [running]


def test_files_of_killed_builds_are_removed_and_those_of_running_ones_kept(path):
    left, other = made(path, "killed").parent, made(path, "other").parent
    os.utime(left, times=(time.time() - 2 * 86400,) * 2)
    versioned_trees.switch_over(path, made(path, "one"))
    assert beside(path) == [other.name, "one"]


def test_an_empty_directory_in_the_way_goes_and_a_full_one_is_refused(path):
    path.mkdir(parents=True)
    versioned_trees.switch_over(path, made(path, "one"))
    assert path.is_symlink()
    path.unlink()
    path.mkdir()
    (path / "mine").touch()
    with pytest.raises(versioned_trees.TreeError, match="was not made by this role; move it away"):
        versioned_trees.switch_over(path, made(path, "two"))
    assert (path / "mine").exists()


def test_a_tree_without_a_version_is_refused(path):
    tree = made(path, "one")
    (tree / "VERSION").unlink()
    with pytest.raises(versioned_trees.TreeError, match="has no file VERSION"):
        versioned_trees.switch_over(path, tree)


def test_a_tree_that_cannot_be_made_leaves_nothing(path):
    def fill(work: Path) -> Path:
        (work / "half").write_text("half")
        raise OSError

    with pytest.raises(OSError):
        versioned_trees.new_tree(path, fill)
    assert list(path.with_name(f"{path.name}-versions").iterdir()) == []


def test_a_tree_is_made_beside_its_place(path):
    tree = versioned_trees.new_tree(path, lambda work: work / "tree")
    assert tree.parents[1] == path.with_name(f"{path.name}-versions")
    assert tree.parent.name.startswith(BUILDING)

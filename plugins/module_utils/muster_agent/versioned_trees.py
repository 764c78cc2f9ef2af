"""Trees of files that containers have mounted: a new one comes to lie beside the old, and a link is pointed at it.

It imports nothing else of this package: roles put it into the programs that they run on hosts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BUILDING = ".building-"
_LONGEST_BUILD_S = 86400


class TreeError(Exception):
    """A tree cannot come to where it is to be."""


def new_tree(path: Path, fill: Callable[[Path], Path]) -> Path:
    """Make a tree beside its final place, since a rename must not cross file systems: all of it or none.

    `fill` makes it in the directory that it is given, and returns where it lies there.
    """
    work = Path(tempfile.mkdtemp(prefix=BUILDING, dir=str(_directory_of_trees(path))))
    try:
        return fill(work)
    except BaseException:  # nothing is left half made, and the error is raised again
        shutil.rmtree(str(work), ignore_errors=True)
        raise


def switch_over(path: Path, tree: Path) -> str:
    """Bring `tree` to its place beside the link `path`, point that at it, and return its version.

    The version is the first line of the tree's file VERSION. Containers that run keep the tree that they were started
    with; trees that no process has mounted any more are removed. Raises TreeError.
    """
    trees = _place_of_trees(path)
    text = version_in(tree)
    if not text:
        raise TreeError(f"{tree} has no file VERSION")
    final = trees / text.splitlines()[0]
    with (trees / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.exists() and version_in(final) != text:
            # Damaged. Aside rather than away: the containers that run from it keep it by whatever name.
            final.rename(tempfile.mkdtemp(prefix=".damaged-", dir=str(trees)))
        # A tree that is whole is never made again.
        if final.exists():
            shutil.rmtree(str(tree))
        else:
            tree.rename(final)
        if tree.parent.name.startswith(BUILDING):
            shutil.rmtree(str(tree.parent))
        _point(path, final)
        _remove_unused(trees, final.name)
    return final.name


def version_in(tree: Path) -> str | None:
    file = tree / "VERSION"
    return file.read_text() if file.is_file() else None


def _place_of_trees(path: Path) -> Path:
    if path.is_dir() and not path.is_symlink():
        try:
            path.rmdir()  # an engine makes an empty directory where a bind mount's source is missing
        except OSError as error:
            raise TreeError(f"{path} was not made by this role; move it away") from error
    return _directory_of_trees(path)


def _directory_of_trees(path: Path) -> Path:
    """Return the directory beside `path`, made new if missing. All users may pass it, whatever root's umask is."""
    trees = path.with_name(path.name + "-versions")
    for missing in reversed([directory for directory in (trees, *trees.parents) if not directory.exists()]):
        missing.mkdir(exist_ok=True)
        missing.chmod(0o755)
    return trees


def _point(link: Path, tree: Path) -> None:
    """Let `link` point at `tree`, atomically."""
    new = tree.parent / ".link"
    new.unlink(missing_ok=True)
    new.symlink_to(Path(tree.parent.name) / tree.name)
    new.replace(link)


def _remove_unused(trees: Path, current: str) -> None:
    """Remove older trees, except those that a container has mounted a part of, and files of killed builds."""
    mounted = _mounted()
    for tree in trees.iterdir():
        is_made = tree.name.startswith(BUILDING) and time.time() - tree.stat().st_mtime < _LONGEST_BUILD_S
        if tree.is_dir() and tree.name not in {current, *mounted} and not is_made:
            shutil.rmtree(str(tree))


def _mounted() -> set[str]:
    """Return each part of the paths that are mounted anywhere on this host.

    Users choose the names of some, of which Linux escapes only blanks, tabs, newlines and backslashes.
    """
    found: set[str] = set()
    for mountinfo in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            lines = os.fsdecode(mountinfo.read_bytes()).split("\n")
        except OSError:
            continue  # the process has ended meanwhile
        for line in filter(None, lines):
            found.update(line.split(" ")[3].split("/"))
    return found

"""A tenant mounts a folder whose name has what Python takes for a blank or a newline, and Linux does not.

Linux shows the name in its lists of mounts, which the agent's code reads when it launches, reports and removes.
"""

import os
from pathlib import Path

import pytest

from tests.modules.agent_code import folder_quota, versioned_trees
from tests.modules.cluster_on_host import desired, session

# An ideographic space, as Japanese users have it in names; what ends lines; bytes that are no text.
NAMES = ["a\u3000b", "a\xa0b", "a\x0cb", "a\x1cb c d e f g h", "a\rb", "a\u2028b\x85", "a\\040b - c", "a\udcffb"]


@pytest.fixture(params=NAMES, ids=ascii)
def folder(cluster, request):
    """Return a tenant's folder with something in it, which they mount by a link."""
    place = Path(cluster.folders_root) / "plain" / request.param
    (place / "empty").mkdir(parents=True)
    (place / "file").write_text("mine", encoding="utf-8")
    place.parent.joinpath("link").symlink_to(place.name)
    return place


def test_such_a_folder_is_mounted_and_released_and_keeps_what_is_in_it(cluster, folder, tmp_path):
    mount = {"folder": "plain/link", "target": "/data", "read_only": False}
    gang, other = session(mounts=[mount, {**mount, "target": "/other\u3000place"}]), session()
    assert [entry["error"] for entry in cluster.converge(gang)["sessions"]] == [None]
    assert cluster.run_in(gang, "main1", "cat", "/data/file", "/other\u3000place/file") == "minemine"

    # Meanwhile others come and go, folders are measured, and the host gets a new runtime.
    assert [entry["error"] for entry in cluster.converge(desired(gang, "keep"), other)["sessions"]] == [None] * 2
    assert [entry["error"] for entry in cluster.converge(desired(gang, "keep"))["sessions"]] == [None]
    descriptor = os.open(folder, os.O_RDONLY)
    assert folder_quota.file_system(descriptor).kind
    os.close(descriptor)
    tree = tmp_path / "runtime-versions" / f"{versioned_trees.BUILDING}one" / "tree"
    tree.mkdir(parents=True)
    (tree / "VERSION").write_text("one\n", encoding="utf-8")
    assert versioned_trees.switch_over(tmp_path / "runtime", tree) == "one"

    (stopped,) = cluster.converge(desired(gang, "stop"))["sessions"]
    assert (stopped["outcome"], stopped["error"]) == ("stopped", None)
    cluster.converge()
    assert cluster.leaves_nothing()
    assert sorted(path.name for path in folder.iterdir()) == ["empty", "file"]

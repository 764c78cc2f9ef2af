"""Which plain directories of the data root a report names, whatever else lies there."""

import os

from tests.modules.agent_code import plain_folders


def test_directories_and_links_to_them_are_named_and_nothing_else(tmp_path):
    for name in ("b", "a", ".muster", "line\nbreak"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "linked").symlink_to("a")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "circle").symlink_to("circle")
    assert plain_folders.plain_directories(str(tmp_path)) == ["a", "b", "linked"]


def test_what_cannot_be_read_is_unknown_and_a_missing_root_is_empty(tmp_path):
    (tmp_path / "file").touch()
    assert plain_folders.plain_directories(str(tmp_path / "file")) is None
    assert plain_folders.plain_directories(str(tmp_path / "missing")) == []
    os.mkfifo(tmp_path / "pipe")
    assert plain_folders.plain_directories(str(tmp_path)) == []

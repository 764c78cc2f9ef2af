"""Key directories: what wakes a kernel, what reports say of those that a killed run left, and what removes them."""

import os
import select
import shutil

import pytest

from tests.modules.agent_code import agent_names, key_directory, removal

ONE, TWO = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"


@pytest.fixture
def paths(tmp_path, monkeypatch):
    for root in ("KEY_ROOT", "FGPU_ROOT", "MOUNT_ROOT"):
        monkeypatch.setattr(agent_names, root, tmp_path / root)
    return agent_names.ClusterPaths("no-such-cluster")


def test_a_host_without_key_directories_has_no_files(paths):
    assert key_directory.sessions_with_keys(paths) == []


@pytest.mark.parametrize("left", ["", "main1", "main1/secrets"])
def test_a_session_has_files_until_its_directory_is_gone(paths, left):
    for session_id in (TWO, ONE):
        (paths.keys / session_id / left).mkdir(parents=True)
    assert key_directory.sessions_with_keys(paths) == [ONE, TWO]
    assert key_directory.kernels_with_keys(paths).keys() == {ONE, TWO}
    removal.remove_files(paths, ONE)
    assert key_directory.sessions_with_keys(paths) == [TWO]


def test_what_somebody_else_put_there_is_not_named(paths):
    (paths.keys / "not\nours").mkdir(parents=True)
    (paths.keys / TWO).write_text("a file")
    assert key_directory.sessions_with_keys(paths) == []


def test_a_release_wakes_a_kernel_that_waits_for_it(paths):
    keys = paths.kernel_keys(ONE, "main1")
    key_directory.write_keys(keys, {}, os.getuid(), os.getgid())
    waiting = os.open(keys / "wake", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert select.select([waiting], [], [], 0)[0] == []
        key_directory.release(paths, ONE, ["main1"], "1")
        assert select.select([waiting], [], [], 0)[0] == [waiting]
    finally:
        os.close(waiting)


def test_a_kernel_that_does_not_wait_yet_is_released_too(paths):
    keys = paths.kernel_keys(ONE, "main1")
    key_directory.write_keys(keys, {}, os.getuid(), os.getgid())
    key_directory.release(paths, ONE, ["main1"], "1")
    assert key_directory.released_generation(keys) == "1"


def test_a_launch_that_was_given_up_leaves_its_pipe_to_the_next(paths):
    keys = paths.kernel_keys(ONE, "main1")
    for _ in range(2):
        key_directory.write_keys(keys, {}, os.getuid(), os.getgid())
    assert (keys / "wake").is_fifo()


def test_sessions_that_go_while_they_are_looked_at_disturb_nothing(paths, monkeypatch):
    for session_id in (ONE, TWO):
        paths.kernel_keys(session_id, "main1").mkdir(parents=True)

    def remove_all(directory):
        for session_id in (ONE, TWO):
            shutil.rmtree(paths.keys / session_id, ignore_errors=True)
        return released_generation(directory)

    released_generation = key_directory.released_generation
    monkeypatch.setattr(key_directory, "released_generation", remove_all)
    (found,) = key_directory.kernels_with_keys(paths).values()
    assert found == {"main1": ""}
    assert key_directory.kernels_with_keys(paths) == {}

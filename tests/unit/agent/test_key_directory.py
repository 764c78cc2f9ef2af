"""Key directories that a run left which was killed: what reports say of them, and what removes them."""

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

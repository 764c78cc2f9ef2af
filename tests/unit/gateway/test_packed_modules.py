"""Packed modules: plays share them, and those of agents hold a title of their sources."""

import base64
import io
import zipfile

import pytest
from ansible import constants
from ansible.executor.module_common import ModuleMetadataV1, _CachedModule

from muster.ansible_gateway.kept_code import name_of, title
from muster.ansible_gateway.packed_modules import divide_packed, give_packed, sources_of

AGENTS = "ansible.legacy.agent_report-ZIP_DEFLATED-none"
OTHER = "ansible.modules.ping-ZIP_DEFLATED-none"
OURS = ("agent_report",)


@pytest.fixture
def play(tmp_path):
    """Return the temporary directory of a play that has packed two modules."""
    directory = tmp_path / "play"
    (directory / "ansiballz_cache").mkdir(parents=True)
    for name in (AGENTS, OTHER):
        metadata = ModuleMetadataV1(serialization_profile="legacy")
        zip_data = base64.b64encode(packed(name))
        module = _CachedModule(zip_data=zip_data, metadata=metadata, source_mapping={"here": "there"})
        module.dump(str(directory / "ansiballz_cache" / name))
        (directory / "ansiballz_cache" / f"{name}.lock").touch()
    return directory


def packed(name: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        file.writestr(zipfile.ZipInfo("parts.py", (2026, 1, 1, 0, 0, 0)), f"word = {name!r}")
    return written.getvalue()


def held(directory, name) -> bytes:
    """Return the sources that Ansible finds in a packed module."""
    return base64.b64decode(_CachedModule.load(str(directory / "ansiballz_cache" / name)).zip_data)


def test_only_modules_of_agents_hold_a_title(play):
    divide_packed(play, OURS)
    assert held(play, AGENTS) == title(name_of(packed(AGENTS)))
    assert held(play, OTHER) == packed(OTHER)


def test_the_next_play_finds_the_sources_of_a_title(play, tmp_path, monkeypatch):
    divide_packed(play, OURS)
    server, following = tmp_path / "server", tmp_path / "following"
    for source, target in ((play, server), (server, following)):
        target.mkdir()
        give_packed(source, target)
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(following))
    assert sources_of(name_of(held(following, AGENTS))) == packed(AGENTS)
    assert held(following, OTHER) == packed(OTHER)
    assert not list((following / "ansiballz_cache").glob("*.lock"))


def test_what_has_been_divided_stays(play):
    divide_packed(play, OURS)
    before = (play / "ansiballz_cache" / AGENTS).stat().st_ino
    divide_packed(play, OURS)
    assert (play / "ansiballz_cache" / AGENTS).stat().st_ino == before


def test_a_play_without_modules_of_agents_shares_the_others(play, tmp_path):
    (play / "ansiballz_cache" / AGENTS).unlink()
    divide_packed(play, OURS)
    give_packed(play, tmp_path)
    assert held(tmp_path, OTHER) == packed(OTHER)

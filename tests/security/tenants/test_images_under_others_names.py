"""A user makes an image under a name by which others mean a registry's image: they would run it as themselves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.images.committed import CommittedImage
from muster.core.values.errors import BadInputError
from muster.service.images import commits
from muster.service.images.commits import CommitRequest, planned_commit
from muster.settings import Settings, load_settings
from tests.command_line import write_settings
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on

ID = "sha256:" + "0" * 64


@pytest.fixture
def plan(control_node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what plans a commit of mallory's running session."""
    store = control_node().store
    monkeypatch.setattr(commits, "parent_id", lambda _agent, _kernel: ID)
    store.agents.save([make_agent("a1")])

    def planned(
        name: str, by: str = "mallory", *, foreign: bool = True, as_administrator: bool = False
    ) -> CommittedImage:
        settings: Settings = load_settings(write_settings(tmp_path, {"foreign_images": foreign}))
        session = replace(placed_on(make_session(1, name="run"), "a1"), owner=by)
        request = CommitRequest(None, name, public=True)
        return planned_commit(store, settings, session, request, by, of_anybody=as_administrator).image

    return planned


@pytest.mark.parametrize(
    "name",
    [
        *("debian:12", "pytorch/pytorch:2", "registry.lab.example/team/plain:1", "ann/work:2", "mallory:1"),
        *("mallory2/pytorch:1", "library/mallory:1", "lab/mallory/x:1"),
    ],
)
def test_a_foreign_image_name_is_refused(plan: Any, name: str) -> None:
    with pytest.raises(BadInputError, match=r"^NAME:TAG: "):
        plan(name)


@pytest.mark.parametrize("user", ["library", "docker.io", "index.docker.io"])
def test_a_users_name_that_the_engine_leaves_out_gives_them_nobody_elses_images(plan: Any, user: str) -> None:
    with pytest.raises(BadInputError, match="the engine calls"):
        plan(f"{user}/library/debian:12" if "." in user else f"{user}/debian:12", user)


@pytest.mark.parametrize("name", ["mallory/debian:12", "mallory/deep/er:1"])
def test_names_of_their_own_are_theirs(plan: Any, name: str) -> None:
    assert plan(name).reference == name


def test_an_administrator_and_a_site_without_foreign_images_may_choose(plan: Any) -> None:
    assert plan("lab/train:2", as_administrator=True).reference == "lab/train:2"
    assert plan("lab/train:2", foreign=False).reference == "lab/train:2"

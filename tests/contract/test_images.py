"""Images made of sessions, in both databases."""

from dataclasses import replace

import pytest

from muster.core.images.committed import CommittedImage, parse_name
from muster.core.model.token import Scope, Token
from muster.core.values.errors import NameTakenError
from muster.service.images import removal
from muster.settings import Settings
from muster.store.images import ABANDONED_AFTER_S
from tests.strategies.agents import make_agent
from tests.strategies.values import NOW

IMAGE = CommittedImage(
    name="lab/train",
    tag="2",
    owner="ann",
    public=False,
    message="with results",
    parent="muster/default:latest",
    parent_id="sha256:" + "1" * 64,
    session_id="0" * 36,
    session_name="train",
    kernel_name="main1",
    agent_id="a1",
    architecture="x86_64",
    created_at=NOW,
)
ANN = Token("laptop", "ann", Scope.USER, NOW)
MADE = replace(IMAGE, image_id="sha256:" + "2" * 64, size_bytes=1 << 40)


def test_an_image_is_in_the_catalog_once_it_is_made(store):
    store.images.claim(IMAGE)
    assert store.images.all() == ()
    assert store.images.find("lab/train", "2") == IMAGE
    assert store.images.made(MADE)
    assert store.images.all() == (MADE,)


def test_a_name_is_had_once(store):
    store.images.claim(IMAGE)
    with pytest.raises(NameTakenError, match="lab/train:2"):
        store.images.claim(replace(IMAGE, owner="bob"))
    store.images.claim(replace(IMAGE, tag="3"))


def test_a_forgotten_image_leaves_its_name(store):
    store.images.claim(IMAGE)
    assert store.images.forget(IMAGE)
    assert not store.images.forget(IMAGE)
    store.images.claim(IMAGE)


def test_the_name_of_an_image_whose_maker_has_died_is_free_again(store):
    store.images.claim(IMAGE)
    store.images.touch(IMAGE, NOW + 600)
    later = replace(IMAGE, owner="bob", created_at=NOW + 600 + ABANDONED_AFTER_S)
    with pytest.raises(NameTakenError):
        store.images.claim(later)
    assert not store.images.is_abandoned("lab/train", "2", later.created_at)
    assert store.images.is_abandoned("lab/train", "2", later.created_at + 1)
    later = replace(later, created_at=later.created_at + 1)
    store.images.claim(later)
    assert store.images.find("lab/train", "2") == later


def test_an_image_that_is_made_keeps_its_name_for_good(store):
    store.images.claim(IMAGE)
    store.images.made(MADE)
    assert not store.images.is_abandoned("lab/train", "2", NOW * 2)
    with pytest.raises(NameTakenError):
        store.images.claim(replace(IMAGE, created_at=NOW * 2))


def test_a_maker_whose_name_was_taken_over_leaves_it_to_the_other(store):
    """The first was cut off from the database for so long that it counted as dead."""
    store.images.claim(IMAGE)
    later = replace(IMAGE, owner="bob", created_at=NOW + ABANDONED_AFTER_S + 1)
    store.images.claim(later)
    store.images.touch(IMAGE, NOW * 2)
    assert not store.images.made(MADE)
    store.images.give_up(IMAGE)
    assert store.images.find("lab/train", "2") == later
    assert store.images.is_abandoned("lab/train", "2", NOW * 2)


def test_an_image_that_was_removed_while_it_was_made_is_not_in_the_catalog(store):
    store.images.claim(IMAGE)
    store.images.forget(IMAGE)
    assert not store.images.made(MADE)
    assert store.images.all() == ()


def test_an_image_that_is_made_anew_while_one_of_its_name_is_removed_stays(store, tmp_path, monkeypatch):
    """Another command has removed the same image first, which takes as long as its agents do."""
    settings = Settings(state_dir=tmp_path)
    store.agents.save([make_agent("a1")])
    store.images.claim(IMAGE)
    store.images.made(MADE)
    anew = replace(IMAGE, owner="bob", created_at=NOW + 1)

    def removed_by_another(_agent: object, _reference: str) -> None:
        monkeypatch.setattr(removal, "remove", lambda _agent, _reference: None)
        removal.remove_image(store, settings, MADE.reference, ANN, lambda _session: True)
        store.images.claim(anew)

    monkeypatch.setattr(removal, "remove", removed_by_another)
    removed = removal.remove_image(store, settings, MADE.reference, ANN, lambda _session: True)
    assert removed.agent_ids == ["a1"]
    assert store.images.find("lab/train", "2") == anew


@pytest.mark.parametrize(
    "name", ["", "a", ":1", "a:", "A:1", "a b:1", "a//b:1", "host:5000/a:1", "a:1/b", "-a:1", "a:-1"]
)
def test_an_invalid_name_is_refused(name):
    with pytest.raises(ValueError, match="write"):
        parse_name(name)


@pytest.mark.parametrize(("name", "parts"), [("a:1", ("a", "1")), ("lab/a-b_c.d:V2.0", ("lab/a-b_c.d", "V2.0"))])
def test_a_name_has_a_tag(name, parts):
    assert parse_name(name) == parts

"""Users' own presets of the launch page."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from muster.core.values.errors import BadInputError, NotFoundError
from muster.store.presets import OwnPreset
from tests.strategies.values import NOW

AT_ONCE = 8
TRAIN = OwnPreset("ada", "train", {"gpu": 1, "mem": "4G", "env": {"A": "ä"}, "apps": ["jupyterlab"]}, NOW)


def test_presets_are_their_owners_in_the_order_of_names(store):
    lab = OwnPreset("ada", "lab", {}, NOW + 1)
    hers = OwnPreset("eve", "train", {"cpu": 2}, NOW)
    for preset in (TRAIN, lab, hers):
        store.presets.put(preset, 2)
    assert store.presets.of("ada") == (lab, TRAIN)
    assert store.presets.of("eve") == (hers,)
    assert store.presets.of("bob") == ()


def test_one_of_the_same_name_is_replaced_also_where_no_more_are_allowed(store):
    store.presets.put(TRAIN, 1)
    again = OwnPreset("ada", "train", {"cpu": 4}, NOW + 1)
    store.presets.put(again, 1)
    with pytest.raises(BadInputError, match="preset: you have 1 presets; remove one of them first"):
        store.presets.put(OwnPreset("ada", "lab", {}, NOW), 1)
    store.presets.put(OwnPreset("eve", "lab", {}, NOW), 1)
    assert store.presets.of("ada") == (again,)


def test_of_many_that_are_saved_at_once_no_more_are_kept_than_may_be(url, open_store):
    barrier = threading.Barrier(AT_ONCE)

    def save(number: int) -> None:
        presets = open_store(url).presets
        barrier.wait()
        with suppress(BadInputError):
            presets.put(OwnPreset("ada", f"p{number}", {}, NOW), 3)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(save, range(AT_ONCE)))
    assert len(open_store(url).presets.of("ada")) == 3


def test_only_the_owner_removes_one(store):
    store.presets.put(TRAIN, 1)
    with pytest.raises(NotFoundError, match="you have no preset 'train'"):
        store.presets.remove("eve", "train")
    store.presets.remove("ada", "train")
    with pytest.raises(NotFoundError):
        store.presets.remove("ada", "train")
    assert store.presets.of("ada") == ()

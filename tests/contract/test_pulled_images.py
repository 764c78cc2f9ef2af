"""Images that were pulled to agents."""

from dataclasses import replace

from muster.core.images.collection import PulledImage
from tests.strategies.values import NOW

DAY = 86400.0
ONE = PulledImage("a1", "debian:12", "sha256:" + "ab" * 32, NOW)
TWO = replace(ONE, agent_id="a2", needed_at=NOW + 5)


def test_an_image_is_known_by_its_agent_and_name(store):
    store.pulled_images.save([TWO, ONE])
    assert store.pulled_images.all() == [ONE, TWO]
    again = replace(ONE, image_id="sha256:" + "cd" * 32, needed_at=NOW - 1, removed_at=NOW)
    store.pulled_images.save([again])
    assert store.pulled_images.all() == [again, TWO]
    store.pulled_images.save([ONE])
    assert store.pulled_images.all() == [ONE, TWO], "it was pulled again"


def test_only_pulls_of_images_removed_long_ago_are_forgotten(store):
    store.pulled_images.save([replace(ONE, needed_at=0.0), replace(TWO, removed_at=NOW)])
    store.pulled_images.forget_old(NOW + 29 * DAY)
    assert len(store.pulled_images.all()) == 2
    store.pulled_images.forget_old(NOW + 31 * DAY)
    assert store.pulled_images.all() == [replace(ONE, needed_at=0.0)]

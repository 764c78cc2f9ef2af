"""An agent whose disk is short: the image that Muster pulled from a registry goes when nobody needs it any more."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import docker
import pytest

from muster.settings import load_settings
from muster.store.store import Store
from tests.control_node import ControlNode
from tests.e2e.conftest import NewNode
from tests.e2e.images.registry import Registry, registry
from tests.waiting import eventually

KEEP_S = 2


@pytest.fixture(scope="module")
def collecting(new_node: NewNode) -> ControlNode:
    """Return a control node by whose settings every disk is short, and which looks at it every second."""
    made = new_node(observe_interval_s=1, image_keep_s=KEEP_S, image_min_free="1000T")
    made.start_daemon()
    return made


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with registry(docker.from_env().version()["Arch"]) as running:
        yield running


def held(image: str) -> bool:
    return bool(docker.from_env().images.list(image))


def wait_until(node: ControlNode, reached: Callable[[Store], bool]) -> None:
    # Closed before the next command, which runs in a fork of this process.
    with closing(Store(load_settings(node.config).database_url)) as store:
        eventually(lambda: reached(store))


def observed_after(moment: float) -> Callable[[Store], bool]:
    return lambda store: all(agent.observed_at > moment for agent in store.agents.all())


def removed(store: Store) -> bool:
    return any(image.removed_at for image in store.pulled_images.all())


def test_a_pulled_image_stays_while_it_is_needed_goes_afterwards_and_comes_again(
    collecting: ControlNode, served: Registry
) -> None:
    name = collecting.start("--image", served.image)
    wait_until(collecting, observed_after(time.time() + KEEP_S))
    assert held(served.image)
    collecting.run("terminate", name, "--wait")
    wait_until(collecting, removed)
    assert not held(served.image)
    again = collecting.start("--image", served.image)
    assert held(served.image)
    collecting.run("terminate", again, "--wait")
    wait_until(collecting, removed)

"""Schedules of faults on real hosts. `./dev chaos --seeds N` plays more of them."""

import pytest

from tests.lab.chaos.cluster import control_node_for_chaos
from tests.lab.chaos.run import play
from tests.lab.chaos.schedule import schedule
from tests.lab.lab import Lab

pytestmark = pytest.mark.timeout(900)


# These two have both databases, and nine of the twelve kinds of faults between them.
@pytest.mark.parametrize("seed", [1, 2])
def test_every_promise_is_kept_whatever_fails(seed: int, lab: Lab, tmp_path) -> None:
    chosen = schedule(seed, [host.name for host in lab.hosts])
    with control_node_for_chaos(chosen, lab, tmp_path) as node:
        played = play(chosen, lab, node)
        log = (tmp_path / "daemon.log").read_text()
    assert played.broken == [], f"{chosen}\n{log[-20_000:]}"

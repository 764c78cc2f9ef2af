"""A site's disk limit: a session that writes more on its agent's disk ends, and one that keeps to it goes on."""

import pytest

from tests.control_node import SMALL, ControlNode

FILL = "head -c 30000000 /dev/urandom > $HOME/filling; sleep 1000"


@pytest.fixture(scope="module")
def limiting(new_node) -> ControlNode:
    """Return a control node that observes every second, so that changes show soon."""
    made = new_node(observe_interval_s=1, disk_limit="20M")
    made.start_daemon()
    return made


def test_a_session_that_writes_more_than_its_limit_ends_and_the_others_go_on(limiting):
    modest = limiting.start("--disk", "10M")
    # On a slow disk, what is written lies in memory for a while.
    filling = limiting.submit(*SMALL, "--mem", "256M", "--cluster-size", "2", "--on", "all", "-c", FILL)
    # The count has the least priority, and the next one comes only after 19 times as long as the first one took.
    ended = limiting.reaches(filling, "TERMINATED", within=600)
    assert (ended["result"], ended["exit_code"]) == ("FAILURE", None)
    assert ended["reason"].endswith("on its agent's disk, its disk limit is 20 MiB"), ended["story"]
    assert limiting.show(modest)["state"] == "RUNNING"
    assert "Disk limit: 10M in each kernel" in limiting.run("show", modest).out


def test_more_than_the_sites_limit_is_refused(limiting):
    refused = limiting.run("submit", "--disk", "1G", check=False)
    assert refused.code == 2
    assert "disk: 1G is more than this site gives a container, 20M; ask for 20M or less" in refused.err

"""Commands that may not begin any more: the host hung, and its sessions may run elsewhere."""

import time

import pytest

from tests.modules.agent_code import key_directory
from tests.modules.cluster_on_host import desired, session


def in_s(seconds: float) -> int:
    """Return the host's uptime so many seconds from now."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) + seconds)


def released(cluster, gang):
    return key_directory.released_generation(cluster.paths.kernel_keys(gang["id"], "main1"))


def test_a_host_that_wakes_up_too_late_begins_nothing(cluster):
    (result,) = cluster.converge(session(["main1", "sub1"]), begin_by_s=in_s(-2))["sessions"]
    assert (result["outcome"], result["permanent"]) == ("failed", False)
    assert result["error"].startswith("this agent would begin it too late: it hung, or was cut off,")
    assert cluster.leaves_nothing()


def test_a_gang_over_several_hosts_is_not_released_too_late(cluster):
    gang = {**session(["main1", "sub1"]), "release": False}
    cluster.converge(gang, begin_by_s=in_s(300))
    (late,) = cluster.converge(desired(gang, "release"), begin_by_s=in_s(-2))["sessions"]
    assert (late["outcome"], late["permanent"], released(cluster, gang)) == ("failed", False, "")
    (early,) = cluster.converge(desired(gang, "release"), begin_by_s=in_s(300))["sessions"]
    assert (early["outcome"], early["error"], released(cluster, gang)) == ("released", None, str(gang["generation"]))


@pytest.mark.parametrize("again", ["launch", "release"])
def test_what_has_begun_goes_on_whenever_that_is_asked_for_again(cluster, again):
    gang = session()
    cluster.converge(gang, begin_by_s=in_s(300))
    (result,) = cluster.converge(desired(gang, again) if again == "release" else gang, begin_by_s=in_s(-2))["sessions"]
    assert result["outcome"] == "released"
    assert list(cluster.states().values()) == ["running"]

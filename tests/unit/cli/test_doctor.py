"""What `muster doctor` finds of agents."""

import pytest

from muster.cli.doctor import encryption_finding
from tests.strategies.agents import make_agent


@pytest.mark.parametrize(
    ("wish", "encrypts", "ok", "found"),
    [
        ("auto", True, True, "IPsec"),
        ("auto", False, False, "Linux 6.1.0 has no ESP with AES-GCM"),
        (True, False, False, "Linux 6.1.0 has no ESP with AES-GCM"),
        (False, False, True, "none, as overlay_network_encrypted says"),
        (False, True, True, "none, as overlay_network_encrypted says"),
    ],
)
def test_traffic_between_agents_in_the_clear_is_a_finding_unless_the_site_decided_so(wish, encrypts, ok, found):
    agent = make_agent("a1", swarm="worker", encrypts=encrypts, overlay_encrypted=wish)
    finding = encryption_finding(agent)
    assert finding.ok is ok
    assert finding.found.startswith(found)

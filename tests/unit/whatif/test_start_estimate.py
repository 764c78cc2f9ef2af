"""When what waits starts: a time only where one is known."""

import pytest

from muster.core.model.wait import Wait, WaitCode
from muster.core.whatif.explain import HOPELESS, Surroundings
from muster.core.whatif.start_estimate import start_estimate

NOW = 1_000_000.0
AROUND = Surroundings(NOW, lambda at: f"T+{at - NOW:g}")


def test_the_estimate_of_a_session_that_is_about_to_start_is_now():
    assert start_estimate(None, AROUND) == "now"


@pytest.mark.parametrize("code", WaitCode)
def test_a_time_is_given_only_if_it_is_known(code):
    estimate = start_estimate(Wait(code, ""), AROUND)
    assert "too many" not in start_estimate(Wait(code, "", endless=1), AROUND)
    assert estimate.startswith("never") == (code in HOPELESS)
    assert "T+" not in estimate
    # Pages show it beside a label with a colon of its own.
    assert ":" not in estimate


@pytest.mark.parametrize("code", sorted(set(WaitCode) - HOPELESS))
def test_a_known_time_is_given(code):
    assert start_estimate(Wait(code, "", estimated_start=NOW + 1200), AROUND) == "T+1200 (in 20m)"
    assert start_estimate(Wait(code, "", until=NOW + 60), AROUND) == "not before T+60 (in 1m)"
    both = Wait(code, "", until=NOW + 60, estimated_start=NOW + 1200)
    assert start_estimate(both, AROUND) == "T+1200 (in 20m)"

"""Texts name no sessions that their reader may not see."""

import pytest

from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.reasons import behind, preempting
from muster.core.whatif.redaction import redacted
from tests.strategies.sessions import make_session


@pytest.mark.parametrize("code", WaitCode)
def test_no_wait_names_a_session_that_may_not_be_seen(code):
    wait = Wait(code, "it waits for secret-plan", waits_for=("hers", "mine"), until=5.0, position=3)
    wait_shown = redacted(wait, {"hers"})
    assert "secret-plan" not in str(wait_shown)
    assert (wait_shown.waits_for, wait_shown.until, wait_shown.position, wait_shown.code) == (("mine",), 5.0, 3, code)
    assert wait_shown.message


def test_reasons_about_other_sessions_do_not_name_them():
    hers = make_session(name="secret-plan")
    for wait in (behind(hers, delays=True), behind(hers, delays=False), preempting([hers])):
        assert "secret-plan" in wait.message
        assert "secret-plan" not in redacted(wait, {hers.id}).message


def test_who_waits_in_a_queue_without_backfill_is_not_told_that_they_would_delay_others():
    hers = make_session(name="secret-plan")
    assert "delay" not in redacted(behind(hers, delays=False), {hers.id}).message


def test_a_wait_for_sessions_that_may_be_seen_stays_as_it_is():
    wait = behind(make_session(name="mine"), delays=True)
    assert redacted(wait, {"somebody-elses"}) is wait

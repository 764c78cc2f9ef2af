"""One tracker behind `changed` and `--diff`."""

from tests.modules.agent_code import differences


def _tracked(*changes):
    tracker = differences.Differences()
    for change in changes:
        tracker.add(*change)
    return tracker


def test_nothing_noted_is_nothing_changed():
    tracker = _tracked()
    assert not tracker.changed
    assert tracker.diff() == {"before": {}, "after": {}}


def test_a_change_is_shown_before_and_after():
    tracker = _tracked(("networks", "n", "absent", "present"), ("containers", "c", "running", "absent"))
    assert tracker.changed
    assert tracker.diff() == {
        "before": {"networks": {"n": "absent"}, "containers": {"c": "running"}},
        "after": {"networks": {"n": "present"}, "containers": {"c": "absent"}},
    }


def test_replacements_go_from_the_first_state_to_the_last():
    tracker = _tracked(("containers", "c", "exited", "absent"), ("containers", "c", "absent", "running"))
    assert tracker.diff()["before"] == {"containers": {"c": "exited"}}
    assert tracker.diff()["after"] == {"containers": {"c": "running"}}


def test_a_change_that_is_undone_is_no_difference():
    tracker = _tracked(("containers", "c", "absent", "running"), ("containers", "c", "running", "absent"))
    assert not tracker.changed
    assert tracker.diff() == {"before": {}, "after": {}}

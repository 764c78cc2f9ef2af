"""`muster prepare`: the scheduler's compiled code."""

from tests.command_line import muster


def test_preparing_twice_does_the_work_once():
    muster("prepare")
    assert muster("prepare").out == "nothing to do\n"

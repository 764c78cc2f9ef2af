"""`muster prepare`: the scheduler's compiled code."""

from tests.command_line import muster


def test_what_was_prepared_is_not_prepared_again():
    muster("prepare")
    assert muster("prepare").out == "nothing to do\n"

"""The end of the daemon by signals."""

import pytest

from muster.daemon import _Stop, _StoppedError


def test_a_second_signal_breaks_off_nothing_that_is_being_closed():
    stop = _Stop()
    with pytest.raises(_StoppedError):
        stop()
    stop()
    with pytest.raises(_StoppedError):
        stop.check()

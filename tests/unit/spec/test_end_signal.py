"""`--signal`: names and times as users and scripts of Slurm write them."""

import signal

import pytest

from muster.core.spec.end_signal import SIGNALS
from muster.core.spec.errors import validated
from muster.core.spec.sbatch import translation
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import SpecError


def written(value, **others):
    return validated(SessionSpec, {"command": "train", "signal": value, **others})


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("USR1@120", "USR1@120"),
        ("sigusr1", "USR1@60"),
        ("10@2m", "USR1@120"),
        (15, "TERM@60"),
    ],
)
def test_a_signal_is_kept_by_name_with_its_seconds(value, kept):
    spec = written(value)
    assert (spec.signal, f"{spec.signal_name}@{spec.signal_s}") == (kept, kept)


def test_the_numbers_are_those_of_this_machine():
    assert {name: signal.Signals[f"SIG{name}"].value for name in SIGNALS} == dict(SIGNALS)


@pytest.mark.parametrize(
    ("value", "others", "problem"),
    [
        ("KILL@10", {}, "'KILL' is no signal that a command can be sent"),
        ("9", {}, "'9' is no signal that a command can be sent"),
        ("USR1@", {}, "'' is not a span of time"),
        ("USR1@0", {}, "longer than zero"),
        ("USR1@2d", {}, "2d is more than 1d"),
        ("USR1@120", {"command": None}, "there is no command that could get it"),
        ("USR1@120", {"time_limit": "1m"}, "2m is longer than its time limit, 1m"),
        ("USR1@3601", {"time_limit": "1h"}, "1h1s is longer than its time limit, 1h"),
    ],
)
def test_what_no_command_can_be_sent_is_refused(value, others, problem):
    with pytest.raises(SpecError, match=problem) as refused:
        written(value, **others)
    assert [error.field for error in refused.value.errors] == ["signal"]


@pytest.mark.parametrize(
    ("option", "kept", "warned"),
    [("B:USR1@120", "USR1@120", ()), ("SIGTERM", "SIGTERM", ()), ("R:10@30", "10@30", ("R has no meaning here",))],
)
def test_a_line_of_slurm_is_translated(option, kept, warned):
    found = translation(f"#!/bin/sh\n#SBATCH --signal={option}\ntrue\n", {})
    assert found.fields["signal"] == kept
    assert [text.partition("(")[2].rstrip(")") for text in found.without_effect] == list(warned)


def test_a_line_of_slurm_that_names_no_signal_is_an_error_of_its_line():
    (error,) = translation("#!/bin/sh\n#SBATCH --signal=B:@120\ntrue\n", {}).errors
    assert (error.field, error.problem) == ("line 2: --signal", "'B:@120' is no signal")

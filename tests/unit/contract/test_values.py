"""What others say, as text for terminals and databases."""

import pytest

from muster.contract.values import printable_line


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "timed out during banner exchange\r\nConnection closed\r\n",
            "timed out during banner exchange Connection closed",
        ),
        ("\ttwo \n words ", "two words"),
        ("red \x1b[31mtext\x1b[0m", "red \N{REPLACEMENT CHARACTER}[31mtext\N{REPLACEMENT CHARACTER}[0m"),
        ("one\N{LINE SEPARATOR}line", "one line"),
        (" \r\n", ""),
    ],
)
def test_what_was_said_is_one_line(said, line):
    assert printable_line(said) == line

"""A small, repeatable part of what `python -m bench.fuzz` tries on specs, agents' answers and archives."""

import pytest

from tests.hostile.fuzzing import problems


@pytest.mark.parametrize(("kind", "count"), [("specs", 2_000), ("reports", 1_000), ("tars", 200)])
def test_hostile_input_leaves_no_traceback_and_does_no_harm(kind, count):
    assert list(problems(kind, 15, count)) == []

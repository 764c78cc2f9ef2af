"""A small, repeatable part of `python -m bench.fuzz`."""

import pytest

from tests.api_fuzzing import fuzzed_api_briefly
from tests.fuzzing import problems


@pytest.mark.parametrize(("kind", "count"), [("specs", 2_000), ("reports", 1_000), ("tars", 200)])
def test_hostile_input_leaves_no_traceback_and_does_no_harm(kind, count):
    assert list(problems(kind, 15, count)) == []


def test_the_api_keeps_to_its_document_in_all_phases_for_any_input():
    tried = fuzzed_api_briefly(15)
    assert tried.wrong == []
    assert set(tried.calls) >= {"coverage", "fuzzing", "stateful"}
    # Requests without a token, or with a wrong one; unsupported methods; answers to what was made before.
    assert min(tried.statuses[status] for status in (200, 201, 401, 405, 422)) > 0

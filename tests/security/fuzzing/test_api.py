"""A small, repeatable part of what `python -m bench.fuzz` sends to the API: ten seconds of schemathesis' own work."""

from tests.hostile.api_fuzzing import fuzzed_api_briefly


def test_the_api_keeps_to_its_document_in_all_phases_for_any_input():
    tried = fuzzed_api_briefly(15)
    assert tried.wrong == []
    assert set(tried.calls) >= {"coverage", "fuzzing", "stateful"}
    # Requests without a token, or with a wrong one; unsupported methods; answers to what was made before.
    assert min(tried.statuses[status] for status in (200, 201, 401, 405, 422)) > 0

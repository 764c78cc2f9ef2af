"""A spec with fields that are unknown, many or deep costs no more than a refusal."""

import json

import pytest

from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import SpecError


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "values",
    [
        {f"unknown{number}": 0 for number in range(20_000)},
        {"roles": [{f"unknown{number}": 0 for number in range(20_000)}]},
        {"x" * 2_000_000: 1},
        {"begin": float("inf")},
        {"mem": "9" * 400_000},
        {"\x1b[2J\x00": 1},
        {"command": deep(900)},
        {"env": {"A": deep(900)}},
        {"cpu": deep(900)},
        {"cluster_size": 10**5000},
        {"cluster_size": "9" * 100_000},
        {"priority": ["x" * 1_000_000] * 3},
        {"image": {"x" * 1_000_000: "x" * 1_000_000}},
    ],
)
def test_the_answer_is_short(values):
    with pytest.raises(SpecError) as refused:
        validated(SessionSpec, values)
    assert len(refused.value.errors) <= 101
    assert all(str(error).isprintable() and len(str(error)) < 3_000 for error in refused.value.errors)


def test_a_body_that_is_nested_without_end_is_refused_by_the_server(caller):
    with caller("ada") as client:
        for body in ("[" * 100_000, '{"env": ' + "[" * 100_000, json.dumps({"env": deep(900)})):
            answer = client.post("/api/v1/sessions", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 422
            assert answer.headers["content-type"] == "application/problem+json"
            assert len(answer.content) < 10_000

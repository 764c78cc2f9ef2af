"""The server does what its OpenAPI document says, whatever is sent to it."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from muster.core.model.token import Scope
from muster.core.spec.session_spec import SessionSpec
from muster.web.app import make_app
from tests.strategies import make_agent
from tests.unit.web.api.test_api import submitted

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture
def document(app, service, caller):
    service.store.save_agents([make_agent("a1")])
    submitted(caller("ada"), name="train", command="true")
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)


@pytest.fixture
def token(secret_of):
    return secret_of("root", Scope.ADMIN)


# Streams have tests of their own.
STREAMS = ("/api/v1/events", "/log")
BOUNDED = settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


def test_no_request_makes_it_fail_or_answer_other_than_it_says(document, token):
    headers = {"Authorization": f"Bearer {token}"}
    tried = []
    for found in document.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(STREAMS):
            continue

        @BOUNDED
        @given(case=operation.as_strategy())
        def holds(case):
            case.call_and_validate(headers=headers, checks=CHECKS)

        holds()
        tried.append(operation.label)
    assert len(tried) > 12


def test_the_body_of_a_submit_is_the_session_spec_itself(app):
    document = app.openapi()
    assert document["openapi"].startswith("3.1")
    body = document["paths"]["/api/v1/sessions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/SessionSpec"}
    described = document["components"]["schemas"]["SessionSpec"]["properties"]
    assert set(described) == set(SessionSpec.model_fields)


def test_every_operation_asks_for_a_token_and_tells_how_it_refuses(service):
    for path, operations in make_app(service.service).openapi()["paths"].items():
        for operation in operations.values():
            assert operation["security"], path
            assert set(operation["responses"]["401"]["content"]) == {"application/problem+json"}

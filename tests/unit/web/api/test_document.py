"""The API's document: what it says of each operation, and that the server keeps to it."""

import pytest

from muster.core.model.token import Scope
from muster.core.spec.session_spec import SessionSpec
from muster.web.app import make_app

PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


@pytest.fixture
def operations(app):
    paths = app.openapi()["paths"]
    return {(path, method): found for path, methods in paths.items() for method, found in methods.items()}


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


def test_each_operation_refuses_unknown_parameters_and_says_so(caller, operations):
    ada = caller("ada")
    for (path, method), operation in operations.items():
        assert operation["responses"]["422"]["content"] == PROBLEM, path
        answer = ada.request(method, path, params={"mien": "true"})
        assert answer.status_code == 422, path
        (error,) = answer.json()["errors"]
        known = sorted(one["name"] for one in operation.get("parameters", ()) if one["in"] == "query")
        takes = f"this request takes {', '.join(known) or 'none'}"
        assert (error["field"], error["problem"]) == ("mien", f"there is no such parameter; {takes}")


def test_an_operation_says_how_it_refuses_what_there_is_no_room_for(operations):
    for path, method, status in (
        ("/folders", "get", "409"),
        ("/folders/{folder}", "get", "409"),
        ("/folders/{folder}/quota", "post", "409"),
        ("/secrets/{secret}", "put", "507"),
    ):
        assert operations[f"/api/v1{path}", method]["responses"][status]["content"] == PROBLEM, path


def test_all_unknown_parameters_are_named_but_to_strangers(caller):
    ada = caller("ada")
    answer = ada.get("/api/v1/sessions?mien=1&limit=5&%00sort=name&" + "x" * 5000)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["mien", "\ufffdsort", "x" * 100]
    assert ada.get("/api/v1/sessions?mien=1", headers={"Authorization": ""}).status_code == 401


def test_several_values_are_refused_where_one_is_taken(caller):
    ada = caller("ada")
    answer = ada.get("/api/v1/sessions?owner=ada&owner=bob")
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "owner: it is given more than once, and takes one value",
    )
    assert ada.get("/api/v1/sessions?state=RUNNING&state=PENDING").status_code == 200
    assert ada.get("/api/v1/report?by=user&by=day").status_code == 200


def test_a_path_and_a_method_that_are_not_there_are_named(caller):
    ada = caller("ada")
    assert ada.get("/api/v1/nope").json()["detail"] == "there is nothing at /api/v1/nope"
    refused = ada.patch("/api/v1/sessions")
    assert refused.json()["detail"] == "PATCH is not possible here; use GET or POST"
    assert "POST is not possible here; use GET<" in ada.post("/static/live.js").text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/api/v1/sessions", "GET, HEAD, POST"),
        ("PATCH", "/api/v1/folders/data", "DELETE, GET, HEAD"),
        ("POST", "/api/v1/sessions/train", "DELETE, GET, HEAD, PATCH"),
        ("PUT", "/api/v1/sessions/hold", "DELETE, GET, HEAD, PATCH, POST"),
        ("OPTIONS", "/api/v1/folders/data", "DELETE, GET, HEAD"),
        ("POST", "/api/v1/secrets/key", "DELETE, PUT"),
        ("HEAD", "/api/v1/secrets/key", "DELETE, PUT"),
        ("POST", "/api/v1/openapi.json", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
        ("PUT", "/sign-in", "GET, HEAD, POST"),
        ("POST", "/static/live.js", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_there_is_answered_with_all_that_are(caller, method, path, allowed):
    answer = caller("ada").request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_each_path_names_all_methods_of_its_operations(app, caller):
    root = caller("root", Scope.ADMIN)
    for path, operations in app.openapi()["paths"].items():
        methods = {method.upper() for method in operations}
        for method in {"GET", "PUT", "POST", "DELETE", "PATCH"} - methods:
            answer = root.request(method, path)
            # A path such as /sessions/hold is that of a session of this name as well.
            allowed = set(answer.headers.get("allow", "").split(", "))
            assert answer.status_code != 405 or methods <= allowed, (method, path)
            assert answer.status_code == 405 or path.startswith("/api/v1/sessions/"), (method, path)


def test_the_document_is_found_where_programs_look_for_it(caller):
    ada = caller("ada")
    answer = ada.get("/openapi.json", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, "/api/v1/openapi.json")
    assert ada.get("/openapi.json").json()["info"]["title"] == "Muster"


def test_no_parameter_can_be_null(operations):
    for operation in operations.values():
        for parameter in operation.get("parameters", ()):
            assert "anyOf" not in parameter["schema"], parameter


def test_the_services_checks_are_in_the_schema(app, operations):
    schemas = app.openapi()["components"]["schemas"]
    parameters = {
        (*key, one["name"]): one["schema"] for key, found in operations.items() for one in found.get("parameters", ())
    }
    count = parameters["/api/v1/sessions", "post", "count"]
    assert (count["minimum"], count["maximum"]) == (1, 10_000)
    assert parameters["/api/v1/use/over-time", "get", "span"]["enum"] == ["hour", "day", "week"]
    assert parameters["/api/v1/agents", "get", "label"]["items"]["pattern"] == "="
    for model, name in (
        ("RenameRequest", "name"),
        ("FolderRequest", "name"),
        ("CommitRequest", "name"),
        ("SecretRequest", "value"),
    ):
        assert "pattern" in schemas[model]["properties"][name], model
    assert schemas["FolderRequest"]["properties"]["quota_bytes"]["minimum"] == 1 << 20

"""The operations that the web server may request of its broker."""

import inspect
from contextlib import suppress

import pytest

from muster.web.separation.operations import OPERATIONS
from muster.web.separation.wire import MalformedError


@pytest.mark.parametrize("name", OPERATIONS)
def test_arguments_of_each_operation_are_read_or_refused(name):
    _, *parameters = inspect.signature(OPERATIONS[name].function).parameters
    with suppress(MalformedError):
        OPERATIONS[name].decoded(dict.fromkeys(parameters, object()))


def test_the_page_of_resources_requests_its_groups():
    operation = OPERATIONS["resources.groups"]
    assert operation.decoded(operation.encoded((["a", "b"], 0, 20), {})) == {
        "names": ["a", "b"],
        "begin": 0,
        "size": 20,
    }

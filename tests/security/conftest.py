"""Control nodes, servers and their callers, as the tests of single rooms have them."""

from tests.unit.conftest import agents, control_node, node  # noqa: F401 - fixtures
from tests.unit.notify.test_delivery_worker import store, worker  # noqa: F401 - fixtures
from tests.unit.web.conftest import app, browser, caller, secret_of, server, service  # noqa: F401 - fixtures

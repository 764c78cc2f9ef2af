"""Control nodes on this machine's engine, as the end-to-end tests have them."""

from tests.e2e.conftest import new_node, provisioned  # noqa: F401 - fixtures

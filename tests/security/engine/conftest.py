"""Clusters on this machine's engine, as the tests of the modules have them."""

from tests.modules.conftest import _busybox_image, cluster, make_cluster  # noqa: F401 - fixtures

"""Clusters on this machine's engine, as the tests of the modules have them, and a client of that engine."""

from collections.abc import Iterator

import docker
import pytest

from tests.modules.conftest import _busybox_image, cluster, make_cluster  # noqa: F401 - fixtures


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()

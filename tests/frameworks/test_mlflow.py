"""MLflow through the app gateway. Its image has 1 GB, so that `./dev frameworks` alone runs this."""

from collections.abc import Iterator

import pytest

from tests import recipes
from tests.frameworks import walks
from tests.frameworks.browser_apps import BrowserApps, browser_apps


@pytest.fixture(scope="module")
def apps(new_node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserApps]:
    with browser_apps(new_node, tmp_path_factory.mktemp("apps"), {"mlflow": {"mem": "2G", "cpu": 2}}) as made:
        yield made


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_mlflow_logs_a_run_with_a_file_and_finds_it(apps, scheme):
    with apps.opened("mlflow", scheme) as mlflow:
        assert f"mlflow=={walks.through_mlflow(mlflow)}" == recipes.requirement("mlflow")

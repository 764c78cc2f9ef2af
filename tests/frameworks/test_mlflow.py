"""MLflow through the app gateway. Its image has 1 GB: `./dev frameworks` runs this."""

from collections.abc import Iterator

import pytest

from tests import recipes
from tests.frameworks import walks
from tests.frameworks.browser_apps import BrowserApps, browser_apps

# One worker: of several, its server ends those that a busy machine keeps from answering for five seconds.
SPEC = {"cpu": 2, "mem": "2G", "apps": [{"name": "mlflow", "args": "--workers 1"}]}


@pytest.fixture(scope="module")
def apps(new_node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserApps]:
    with browser_apps(new_node, tmp_path_factory.mktemp("apps"), {"mlflow": SPEC}) as made:
        yield made


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_mlflow_logs_a_run_with_a_file_and_finds_it(apps, scheme):
    with apps.opened("mlflow", scheme) as mlflow:
        assert f"mlflow=={walks.through_mlflow(mlflow)}" == recipes.requirement("mlflow")

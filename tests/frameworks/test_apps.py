"""The built-in apps whose images are small, through the app gateway: `./dev test` runs them."""

from collections.abc import Iterator

import pytest

from muster.core.spec.mounts import HOME
from tests import recipes
from tests.frameworks import walks
from tests.frameworks.browser_apps import BrowserApps, browser_apps

RUNS = f"{HOME}/runs"
# A run as a training program logs it, before TensorBoard starts.
_WRITE = (
    f"python3 -c \"from tensorboard.summary import Writer; w = Writer('{RUNS}/first');"
    " [w.add_scalar('loss', 1 / 2**step, step) for step in range(3)]; w.close()\""
)
SPECS = {
    "ttyd": {},
    "tensorboard": {"bootstrap": _WRITE, "env": {"MUSTER_TENSORBOARD_LOGDIR": RUNS}},
    "jupyterlab": {},
}


@pytest.fixture(scope="module")
def apps(new_node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserApps]:
    with browser_apps(new_node, tmp_path_factory.mktemp("apps"), SPECS) as made:
        yield made


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_terminal_echoes_what_a_shell_prints(apps, scheme):
    with apps.opened("ttyd", scheme) as terminal:
        assert walks.through_ttyd(terminal) == "2 from main1"


def test_tensorboard_shows_the_scalars_of_a_run(apps, scheme):
    with apps.opened("tensorboard", scheme) as board:
        assert walks.through_tensorboard(board, "first", "loss") == [1.0, 0.5, 0.25]


def test_jupyterlab_runs_a_cell_and_keeps_files_but_not_without_its_own_protection(apps, scheme):
    with apps.opened("jupyterlab", scheme) as lab:
        assert f"jupyterlab=={walks.through_jupyterlab(lab)}" == recipes.requirement("jupyterlab")

"""A control node on this machine's engine for each file of tests, with the images that the file names."""

import pytest

from tests import recipes
from tests.control_node import ControlNode
from tests.e2e.conftest import NewNode, new_node, provisioned  # noqa: F401 - fixtures


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of a recipe with each recipe for the file's images."""
    if "recipe" in metafunc.fixturenames:
        found = recipes.recipes(*metafunc.module.IMAGES)
        metafunc.parametrize("recipe", found, ids=[recipe.name for recipe in found])


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, new_node: NewNode) -> ControlNode:  # noqa: F811 - the fixture
    """Return a control node with the file's images, built as their recipes are now, and the programs of its recipes."""
    images: tuple[str, ...] = request.module.IMAGES
    for image in images:
        recipes.build(image)
    made = new_node()
    (made.directory / "images.yml").write_text(recipes.catalog(*images))
    recipes.make_project(made, recipes.recipes(*images))
    made.start_daemon()
    return made

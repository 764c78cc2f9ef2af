"""The recipes whose image is large: `./dev frameworks`, and not `./dev test`, which would take too long in CI."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import recipes
from tests.control_node import ControlNode

FRAMEWORKS = recipes.recipes("frameworks")


@pytest.fixture(scope="module")
def node(new_node) -> Iterator[ControlNode]:
    recipes.build("frameworks")
    made = new_node()
    (made.directory / "images.yml").write_text(recipes.catalog("frameworks"))
    recipes.make_project(made, FRAMEWORKS)
    made.start_daemon()
    return made


@pytest.mark.parametrize("recipe", FRAMEWORKS, ids=lambda recipe: recipe.name)
def test_a_recipe_does_what_its_page_says(node: ControlNode, recipe: recipes.Recipe, tmp_path: Path) -> None:
    recipes.run(node, recipe, tmp_path)

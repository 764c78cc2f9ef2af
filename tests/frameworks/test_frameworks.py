"""The recipes whose image is large: `./dev frameworks`, and not `./dev test`, which would take too long in CI."""

from pathlib import Path

from tests import recipes
from tests.control_node import ControlNode

IMAGES = ("frameworks",)


def test_a_recipe_does_what_its_page_says(node: ControlNode, recipe: recipes.Recipe, tmp_path: Path) -> None:
    recipes.run(node, recipe, tmp_path)

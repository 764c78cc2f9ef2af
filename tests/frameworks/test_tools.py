"""The recipes for MPI, parallel shells and Python over ssh: `./dev test` runs them."""

from pathlib import Path

import pytest

from tests import recipes
from tests.control_node import ControlNode

IMAGES = ("cluster-tools",)


def test_a_recipe_does_what_its_page_says(node: ControlNode, recipe: recipes.Recipe, tmp_path: Path) -> None:
    recipes.run(node, recipe, tmp_path)


@pytest.mark.usefixtures("node")
def test_an_image_that_is_there_as_its_recipe_is_now_is_not_built_again():
    assert recipes.build("cluster-tools") == ""

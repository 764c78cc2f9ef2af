"""Every recipe of docs/frameworks.md is run by a tier of tests."""

from collections import Counter

from tests.recipes import PAGE, recipes

FOUND = recipes()


def test_every_recipe_runs_in_an_image_of_which_a_tier_runs_them():
    assert {recipe.image for recipe in FOUND} == {"cluster-tools", "frameworks"}
    assert len(FOUND) == PAGE.read_text().count("\n### ")


def test_no_two_recipes_have_a_file_of_one_name():
    names = Counter(recipe.script_name for recipe in FOUND)
    assert [name for name, count in names.items() if count > 1] == []
    titles = [line.split()[1] for line in PAGE.read_text().splitlines() if line.startswith("```python ")]
    assert len(titles) == len(set(titles)) > 0
    assert set(titles) == {program for recipe in FOUND for program in recipe.programs}


def test_every_recipe_says_what_its_log_holds():
    assert [recipe.name for recipe in FOUND if not recipe.log] == []

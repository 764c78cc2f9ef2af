"""The recipes of docs/frameworks.md, taken from the page and run as they are written there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.control_node import ROOT, ControlNode

PAGE = ROOT / "docs" / "frameworks.md"
_FOLDER = "project"
_RECIPE = re.compile(r"^### (.*?)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe: its job script, the programs in the data folder that it runs, and the lines of its log."""

    name: str
    script_name: str
    script: str
    log: tuple[str, ...]
    programs: dict[str, str] = field(default_factory=dict)

    @property
    def image(self) -> str:
        return re.findall(r"^#MUSTER .*--image (\S+)", self.script, re.MULTILINE)[0]


def recipes(*images: str) -> list[Recipe]:
    """Return the page's recipes that run in one of these images; without any, all of them."""
    return [recipe for recipe in _recipes(PAGE.read_text()) if not images or recipe.image in images]


def _recipes(text: str) -> Iterator[Recipe]:
    programs: dict[str, str] = {}
    for name, section in _RECIPE.findall(text):
        blocks = _BLOCK.findall(section)
        ((script_name, script),) = [(title, content) for kind, title, content in blocks if kind == "sh"]
        (log,) = [content for kind, _, content in blocks if kind == "text"]
        # A recipe may use a program of one before it.
        programs |= {title: content for kind, title, content in blocks if kind == "python"}
        used = {title: content for title, content in programs.items() if f"{_FOLDER}/{title}" in script}
        yield Recipe(name, script_name, script, tuple(log.splitlines()), used)


def build(image: str) -> str:
    """Build an image of `images/` unless it is there as the recipes are now. Return what the program prints."""
    command = (sys.executable, ROOT / "images" / "build", "--changed", image)
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def requirement(image: str) -> str:
    """Return the one Python package of an image of `images/`, with its version."""
    return (ROOT / "images" / image / "requirements.txt").read_text().strip()


def catalog(*images: str) -> str:
    """Return the text of a catalog with these images of `images/`."""
    entries = [yaml.safe_load((ROOT / "images" / image / "image.yml").read_text()) for image in images]
    return json.dumps({"images": entries})


def make_project(node: ControlNode, of: Sequence[Recipe]) -> None:
    """Make the data folder with the programs of these recipes."""
    folder = node.folders / _FOLDER
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    for recipe in of:
        for name, program in recipe.programs.items():
            (folder / name).write_text(program)


def run(node: ControlNode, recipe: Recipe, directory: Path) -> None:
    """Submit a recipe and check that it succeeds, and that the lines of the page are in its log in their order."""
    path = directory / recipe.script_name
    path.write_text(recipe.script)
    name = path.stem
    done = node.run("submit", "--wait", "--wait-timeout", "300", str(path), check=False, timeout=330)
    logs = {kernel["name"]: node.run("logs", f"{name}:{kernel['name']}").out for kernel in node.show(name)["kernels"]}
    said = "\n".join([done.out, done.err, *(f"{kernel}:\n{log}" for kernel, log in logs.items())])
    assert done.code == 0, said
    lines = iter(logs["main1"].splitlines())
    assert [line for line in recipe.log if line not in lines] == [], said

"""Every page of Markdown: how long its lines are, and where its links lead."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 100
PAGES = [
    *ROOT.glob("*.md"),
    *(page for top in ("docs", "images", "muster", "roles") for page in (ROOT / top).rglob("*.md")),
]


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page that are neither table nor code, without the targets of links."""
    in_fence = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_fence = not in_fence
        elif not in_fence and not line.startswith(("|", "    ")):
            yield number, re.sub(r"\]\([^)]*\)", "]", line)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = [line.lstrip("# ") for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_longer_than_100_columns(page):
    assert [number for number, line in prose(page) if len(line) > WIDTH and " " in line.strip()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_the_repository_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target

"""The files of muster/templates; a site may replace each one by a file of the same name in its own directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

import muster


class Templates:
    """A renderer of templates. A missing variable is an error, not an empty text."""

    def __init__(self, site_directory: Path | None = None) -> None:
        own = Path(muster.__file__).parent / "templates"
        directories = [site_directory, own] if site_directory else [own]
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(directories),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,  # noqa: S701 - ssh files, no HTML
        )

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        return self._environment.get_template(name).render(variables)

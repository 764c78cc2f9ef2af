"""Templates, their filters, and static files."""

import hashlib
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from muster.core.model.session import FINAL
from muster.core.values.slots import format_slots
from muster.core.values.units import (
    format_age,
    format_bytes,
    format_duration,
    format_milli,
    format_moment,
    format_seconds,
    timestamp,
)
from muster.service.sessions.views import why_text

STATIC = Path(__file__).parent / "static"
_FOREVER = "public, max-age=31536000, immutable"


def render(template: str, block: str | None, context: Mapping[str, Any]) -> str:
    """Return the rendered template, or one block of it."""
    loaded = _environment().get_template(template)
    if block is None:
        return loaded.render(context)
    return "".join(loaded.blocks[block](loaded.new_context(dict(context))))


class CachedFiles(StaticFiles):
    """A directory of files that a browser may cache forever: their URLs change with their content."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:  # noqa: ANN401 - as it is there
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = _FOREVER
        return response


@cache
def static(name: str) -> str:
    """Return the URL of a static file."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()
    return f"/static/{name}?v={digest[:16]}"


def age(since: float | None) -> Markup:
    """Return how long ago that was, as an element that live.js keeps up to date."""
    if since is None:
        return Markup("-")
    element = Markup('<time datetime="{}" title="{}" data-age>{}</time>')
    return element.format(timestamp(since), format_moment(since), format_age(since, time.time()))


def _moment(seconds: float | None) -> str:
    return "-" if seconds is None else format_moment(seconds)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("muster.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": age,
        "bytes": format_bytes,
        "cpu": format_milli,
        "duration": format_duration,
        "moment": _moment,
        "seconds": format_seconds,
        "slots": format_slots,
        "timestamp": timestamp,
        "units": format_milli,
        "why": why_text,
    }
    environment.globals |= {"static": static, "FINAL": FINAL}
    # As a global, since a block that is rendered alone does not see its template's imports.
    environment.globals["ui"] = environment.get_template("macros.html").module
    return environment

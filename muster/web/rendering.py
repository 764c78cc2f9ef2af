"""Templates, their filters, and static files."""

import hashlib
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from muster.core.model.session import FINAL, SessionState
from muster.core.spec.end_signal import spell_end_signal
from muster.core.values.slots import spell_slots
from muster.core.values.units import (
    exact_bytes,
    exact_duration,
    format_age,
    format_duration,
    format_milli,
    format_moment,
    format_seconds,
    spell_bytes,
    timestamp,
)
from muster.core.whatif.explain import HOPELESS
from muster.service.sessions.views import Explained, why_text
from muster.web.words import wait_label

STATIC = Path(__file__).parent / "static"
_FOREVER = "public, max-age=31536000, immutable"


class _Stated(Explained, Protocol):
    """A view with a state and the reason for it."""

    @property
    def state(self) -> SessionState: ...


def render(template: str, block: str | None, context: Mapping[str, Any]) -> str:
    """Return the rendered template, or one block of it."""
    loaded = _environment().get_template(template)
    if block is None:
        return loaded.render(context)
    return "".join(loaded.blocks[block](loaded.new_context(dict(context))))


def has_block(template: str, block: str) -> bool:
    return block in _environment().get_template(template).blocks


def load_templates() -> None:
    """Compile all templates, so that no page waits for its own."""
    environment = _environment()
    for name in environment.list_templates(["html"]):
        environment.get_template(name)


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


def _why(session: _Stated) -> str:
    """Return why the session is as it is; an empty text where that says no more than its state."""
    text = why_text(session)
    return "" if text == session.state.lower() else text


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("muster.web"),
        autoescape=True,
        undefined=StrictUndefined,
        # They change with the package alone, as the code does that fills them.
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": age,
        "bytes": spell_bytes,
        "cpu": format_milli,
        "duration": format_duration,
        "limit": exact_duration,
        "end_signal": spell_end_signal,
        "exact_bytes": exact_bytes,
        "moment": _moment,
        "seconds": format_seconds,
        "slots": spell_slots,
        "timestamp": timestamp,
        "units": format_milli,
        "wait_label": wait_label,
        "why": _why,
    }
    environment.globals |= {"static": static, "FINAL": FINAL, "HOPELESS": HOPELESS}
    # As a global, since a block that is rendered alone does not see its template's imports.
    environment.globals["ui"] = environment.get_template("macros.html").module
    return environment

"""Views of presets: specs to begin from."""

from typing import Any

from pydantic import Field

from muster.service.view import Moment, View


class PresetView(View):
    name: str
    own: bool = Field(description="whether the caller has saved it; the site offers the others to everybody")
    description: str | None
    spec: dict[str, Any] = Field(description="fields of a session spec")
    changed_at: Moment | None = Field(description="when it was last saved; null for a preset of the site")


class PresetsView(View):
    items: list[PresetView]

"""Specs to begin from: the site's presets, and a user's own, which they save and remove."""

import json
import time
from collections.abc import Mapping
from typing import Any

from muster.core.model.token import Token
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.errors import FieldError, NotFoundError, SpecError
from muster.core.values.units import local_time
from muster.service.identity.permissions import check_may_change
from muster.service.specs.preset_views import PresetsView, PresetView
from muster.settings import Settings
from muster.store.presets import OwnPreset, PresetRows

MOST_OF_ONE = 50
MAX_PRESET_BYTES = 64 << 10
MAX_PRESET_NAME = 60


class OwnedPresets:
    """The presets of a token's user, which nobody else sees, and the site's."""

    def __init__(self, rows: PresetRows, settings: Settings, token: Token) -> None:
        self._rows = rows
        self._settings = settings
        self._token = token

    def all(self) -> PresetsView:
        """Return the user's own presets, then the site's."""
        own = [_view(preset) for preset in self._rows.of(self._token.user)]
        site = [
            PresetView(
                name=name, own=False, description=one.description or None, spec=written(one.spec), changed_at=None
            )
            for name, one in self._settings.presets.items()
        ]
        return PresetsView(items=own + site)

    def named(self, name: str) -> PresetView:
        """Return the user's own preset of that name, or else the site's. Raises NotFoundError."""
        found = next((preset for preset in self.all().items if preset.name == name), None)
        if found is None:
            raise NotFoundError(f"there is no preset {name!r}; choose one of your own or of the site's")
        return found

    def save(self, name: str, values: Mapping[str, Any]) -> PresetView:
        """Save these fields of a session spec, in place of the preset of that name, and return it without its begin.

        Raises ScopeError, SpecError for a name or fields that are not valid, and BadInputError for too many.
        """
        check_may_change(self._token)
        if not (0 < len(name) <= MAX_PRESET_NAME and name.isprintable() and name == name.strip()):
            remedy = f"write 1 to {MAX_PRESET_NAME} characters that can be printed"
            raise SpecError([FieldError("preset", f"{name[: MAX_PRESET_NAME + 1]!r} is no name", remedy)])
        spec = validated(SessionSpec, values, local_time(time.time()))
        # A moment that has passed by the next time.
        fields = written(spec.model_copy(update={"begin": None}))
        if len(json.dumps(fields)) > MAX_PRESET_BYTES:
            remedy = "keep long scripts in a data folder"
            raise SpecError([FieldError("preset", "the session is larger than 64 KiB", remedy)])
        preset = OwnPreset(self._token.user, name, fields, time.time())
        self._rows.put(preset, MOST_OF_ONE)
        return _view(preset)

    def remove(self, name: str) -> PresetView:
        """Remove the user's own preset of that name and return it. Raises ScopeError and NotFoundError."""
        check_may_change(self._token)
        return _view(self._rows.remove(self._token.user, name))


def _view(own: OwnPreset) -> PresetView:
    return PresetView(name=own.name, own=True, description=None, spec=dict(own.spec), changed_at=own.changed_at)

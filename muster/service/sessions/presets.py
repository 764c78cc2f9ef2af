"""A user's own presets of the launch page: saved, named, removed."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from muster.core.model.token import Token
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.errors import FieldError, SpecError
from muster.service.identity.permissions import check_may_change
from muster.store.presets import OwnPreset, PresetRows

MOST_OF_ONE = 50
MAX_PRESET_BYTES = 64 << 10
MAX_PRESET_NAME = 60


class OwnedPresets:
    """The presets of a token's user. Nobody else sees them."""

    def __init__(self, rows: PresetRows, token: Token) -> None:
        self._rows = rows
        self._token = token

    def save(self, name: str, values: Mapping[str, Any]) -> None:
        """Save these fields of a session spec, in place of the preset of that name; a begin is left out.

        Raises ScopeError, SpecError for a name or fields that are not valid, and BadInputError for too many.
        """
        check_may_change(self._token)
        if not (0 < len(name) <= MAX_PRESET_NAME and name.isprintable() and name == name.strip()):
            remedy = f"write 1 to {MAX_PRESET_NAME} characters that can be printed"
            raise SpecError([FieldError("preset", f"{name[: MAX_PRESET_NAME + 1]!r} is no name", remedy)])
        spec = validated(SessionSpec, values, datetime.now(UTC).astimezone())
        # A moment that has passed by the next time.
        fields = written(spec.model_copy(update={"begin": None}))
        if len(json.dumps(fields)) > MAX_PRESET_BYTES:
            remedy = "keep long scripts in a data folder"
            raise SpecError([FieldError("preset", "the session is larger than 64 KiB", remedy)])
        self._rows.put(OwnPreset(self._token.user, name, fields, time.time()), MOST_OF_ONE)

    def remove(self, name: str) -> None:
        """Raises ScopeError and NotFoundError."""
        check_may_change(self._token)
        self._rows.remove(self._token.user, name)

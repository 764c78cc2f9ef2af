"""Secrets of owners: set, listed, removed, and opened for a launch only."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from muster.core.launch.manifest import KeyPair
from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Session
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.startup import SECRET_PATTERN
from muster.core.values.errors import (
    BadInputError,
    FieldError,
    MusterError,
    SettingsError,
    SpecError,
    StoreUnavailableError,
)
from muster.seal import SealKey, make_key, read_key
from muster.store.secrets import SealedSecret, SecretRows

MAX_SECRET_BYTES = 64 << 10
MOST_OF_ONE = 200


class Secrets:
    """The secrets, sealed in the database with the key in `key_path`, which all its control nodes must have."""

    def __init__(self, rows: SecretRows, key_path: Path) -> None:
        self._rows = rows
        self._key_path = key_path

    def set(self, owner: str, name: str, value: str, now: float) -> None:
        """Raises BadInputError for a name or a value that is none, or one secret too many.

        Raises SettingsError without the cluster's key.
        """
        if not SECRET_PATTERN.fullmatch(name):
            raise BadInputError(f"NAME: {name!r} is no name; use letters, digits, dots, dashes and underscores")
        if not value:
            raise BadInputError("the secret is empty; give it a value")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise BadInputError("the secret holds half of a surrogate pair; encode it, as with base64") from None
        if size > MAX_SECRET_BYTES:
            raise BadInputError("the secret is larger than 64 KiB; put large things into a data folder")
        if "\0" in value:
            raise BadInputError("the secret holds a NUL byte; encode it, as with base64")
        key = self._key_for_sealing()
        if not self._rows.put(SealedSecret(owner, name, key.seal(value, owner, name), key.id, now), MOST_OF_ONE):
            # Another control node has set the first one meanwhile.
            raise SettingsError(self._wrong_key())

    def remove(self, owner: str, name: str) -> None:
        """Raises NotFoundError."""
        self._rows.remove(owner, name)

    def of(self, owner: str) -> list[SealedSecret]:
        """Return the owner's secrets in the names' order."""
        return list(self._rows.of(owner).values())

    def check(self, spec: SessionSpec, owner: str) -> None:
        """Raises SpecError for secrets that the owner has not."""
        missing = _missing(spec, self._rows.of(owner)) if spec.secrets else []
        if missing:
            remedy = f"set it with `muster secret set {missing[0]}`"
            raise SpecError([FieldError("secrets", f"{owner} has no secret {name!r}", remedy) for name in missing])

    def values(self, session: Session) -> dict[str, str]:
        """Return the secrets that it names. Raises MusterError with one line where that cannot be."""
        if not session.spec.secrets:
            return {}
        there = self._rows.of(session.owner)
        if missing := _missing(session.spec, there):
            raise MusterError(f"{session.owner} has no secret {missing[0]!r} any more; set it with `muster secret set`")
        key = read_key(self._key_path)
        opened = {}
        for secret in session.spec.secrets:
            sealed = there[secret.name]
            if key is None or sealed.key_id != key.id:
                raise SettingsError(f"secret {secret.name}: {self._wrong_key()}")
            opened[secret.name] = key.open(sealed.sealed, session.owner, secret.name)
        return opened

    def _key_for_sealing(self) -> SealKey:
        others = self._rows.key_ids()
        key = read_key(self._key_path)
        if key is None and not others:
            key = make_key(self._key_path)
        if key is None or others - {key.id}:
            raise SettingsError(self._wrong_key())
        return key

    def _wrong_key(self) -> str:
        return (
            f"{self._key_path} is not the key of this database's secrets; copy it from the control node that set them"
        )


def with_secrets(
    keys: Mapping[str, KeyPair], asking: Iterable[Session], secrets: Secrets, now: float
) -> tuple[dict[str, KeyPair], list[Event]]:
    """Add the secrets' values to the keys of these sessions. Return the keys, and the ends of launches that failed.

    `asking` are sessions with secrets, as they are recorded now. A launch that fails here is over before any agent
    gets it. Raises StoreUnavailableError.
    """
    complete, failures = dict(keys), []
    for session in asking:
        pair = complete.pop(session.id)
        try:
            complete[session.id] = replace(pair, secrets=secrets.values(session))
        except StoreUnavailableError:
            # The next pass goes on: no launch has failed.
            raise
        except MusterError as error:
            failures.append(transitions.launch_failed(session, str(error), now, permanent=True))
    return complete, failures


def _missing(spec: SessionSpec, there: Collection[str]) -> list[str]:
    return sorted({secret.name for secret in spec.secrets} - set(there))

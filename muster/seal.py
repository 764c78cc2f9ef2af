"""Sealing of secrets: AES-256-GCM with a key in a file that only the control node's user may read."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from muster.core.values.errors import SettingsError
from muster.whole_files import write_whole, writing_to

_NONCE_BYTES = 12
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class SealKey:
    """A key. What it seals belongs to a `place` (an owner and a name), and cannot be opened at another."""

    key: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """Tells keys apart and says nothing of them."""
        return hashlib.sha256(b"muster seal key " + self.key).hexdigest()[:16]

    def seal(self, value: str, *place: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.key).encrypt(nonce, value.encode(), _bound(place))

    def open(self, sealed: bytes, *place: str) -> str:
        """Raises SettingsError where it is not what was sealed with this key."""
        try:
            value = AESGCM(self.key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound(place))
        except (InvalidTag, ValueError):
            raise SettingsError(f"secret {place[-1]} cannot be opened: it was altered; set it again") from None
        return value.decode()


def read_key(path: Path) -> SealKey | None:
    """Read the key. Returns None if the file is missing; raises SettingsError if it holds no key."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(key) != _KEY_BYTES:
        raise SettingsError(f"{path} holds no key of {_KEY_BYTES} bytes; bring it back from a backup")
    return SealKey(key)


def make_key(path: Path) -> SealKey:
    """Return the key in that file. A missing one is made whole or not at all, also if several processes do so."""
    partial = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    write_whole(partial, os.urandom(_KEY_BYTES))
    with writing_to(path):
        try:
            os.link(partial, path)
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    made = read_key(path)
    if made is None:
        raise SettingsError(f"{path} vanished while it was made; try again")
    return made


def _bound(place: tuple[str, ...]) -> bytes:
    return b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in place)

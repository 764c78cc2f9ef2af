"""The time, sizes, ids and other small values that tests are made of."""

import uuid

from hypothesis import strategies as st

from muster.core.launch.manifest import KeyPair
from muster.core.values.slots import Slots

NOW = 1_763_724_000.0
M = 1 << 20
GIB = 1 << 30


def new_id(session: int, kernel: int = 0) -> str:
    """Return a UUID that a person can recognise in a failing example."""
    return str(uuid.UUID(int=(session << 96) | (0x4 << 76) | (0x8 << 60) | kernel, version=4))


def fake_key_pair(comment: str) -> KeyPair:
    """Return invented keys: making real ones would be most of a test's time."""
    return KeyPair("private", f"ssh-ed25519 AAAA {comment}")


def slots() -> st.SearchStrategy[Slots]:
    amounts = st.integers(0, 1 << 50)
    return st.builds(Slots, cpu=amounts, mem=amounts, fgpu=amounts, gpu=st.integers(0, 64))


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)

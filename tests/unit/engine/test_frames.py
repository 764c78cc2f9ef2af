"""An engine's frames: both streams come whole, however they are cut, and none needs room for what it claims to be."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.frames import frames

PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50)))


def framed(descriptor: int, data: bytes, *, claims: int | None = None) -> bytes:
    size = len(data) if claims is None else claims
    return bytes([descriptor, 0, 0, 0]) + size.to_bytes(4) + data


@given(PIECES, st.integers(1, 20))
def test_both_streams_come_whole_however_few_bytes_come_at_once(pieces, at_once):
    sent = BytesIO(b"".join(framed(*piece) for piece in pieces))
    got = list(frames(lambda size: sent.read(min(size, at_once))))
    for stream in (1, 2):
        assert b"".join(d for to, d in got if to == stream) == b"".join(d for to, d in pieces if to == stream)


@given(PIECES, st.data())
def test_what_breaks_off_gives_what_had_come(pieces, data):
    whole = b"".join(framed(*piece) for piece in pieces)
    cut = data.draw(st.integers(0, len(whole)))
    got = list(frames(BytesIO(whole[:cut]).read))
    assert b"".join(d for to, d in pieces if to == 1).startswith(b"".join(d for to, d in got if to == 1))


def test_no_frame_is_held_as_a_whole():
    asked = []
    sent = BytesIO(framed(1, b"all that comes", claims=(1 << 32) - 1))

    def read(size: int) -> bytes:
        asked.append(size)
        return sent.read(size)

    assert list(frames(read)) == [(1, b"all that comes")]
    assert max(asked) <= 1 << 16


@pytest.mark.parametrize("said", [b"", b"\x01\x00\x00\x00\x00\x00\x00\x02ab"])
def test_a_terminal_has_no_frames(said):
    assert b"".join(piece for _, piece in frames(BytesIO(said).read, terminal=True)) == said

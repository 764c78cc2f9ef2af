"""The frames in which an engine sends a program's output without a terminal: they tell its output from its errors."""

from collections.abc import Callable, Iterator

OUTPUT = 1
_HEADER_BYTES = 8
_PIECE_BYTES = 1 << 16

Read = Callable[[int], bytes]
"""What returns as many bytes at the most, and at least one until the end: a socket's `recv`, or a file's `read`."""


def frames(read: Read, *, terminal: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield a program's output in small pieces, each with its descriptor: 1 for output, 2 for errors.

    It reads no further than the piece that it gives, so `select` knows whether there is more. With a terminal there are
    no frames: all is output. Raises what `read` raises.
    """
    if terminal:
        while piece := read(_PIECE_BYTES):
            yield OUTPUT, piece
        return
    while len(header := _whole(read, _HEADER_BYTES)) == _HEADER_BYTES:
        left = int.from_bytes(header[4:])
        # A frame is as large as its engine says: it is never held as a whole.
        while left and (piece := read(min(left, _PIECE_BYTES))):
            left -= len(piece)
            yield header[0], piece


def _whole(read: Read, size: int) -> bytes:
    """Return so many bytes, fewer where they end before."""
    found = b""
    while len(found) < size and (piece := read(size - len(found))):
        found += piece
    return found

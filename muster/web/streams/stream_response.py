"""A response that comes in pieces and holds something open until its end."""

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class StreamResponse(StreamingResponse):
    """A stream that closes `closing` at its end, also where its reader has left before the first byte.

    A generator that was never started would not run its `finally`.
    """

    def __init__(
        self,
        pieces: AsyncIterator[str] | AsyncIterator[bytes],
        closing: ExitStack,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(pieces, headers=headers, media_type=media_type)
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._closing:
            await super().__call__(scope, receive, send)

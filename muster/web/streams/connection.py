"""A client's WebSocket, which ends when the server stops."""

import asyncio

from fastapi import WebSocket

SERVICE_RESTART = 1012


class Connection:
    """The connection of one client."""

    def __init__(self, websocket: WebSocket, user: str) -> None:
        self.user = user
        self._websocket = websocket
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End the connection, since the server stops; may be called from any thread and from signal handlers."""
        self._loop.call_soon_threadsafe(self._stopped.set)

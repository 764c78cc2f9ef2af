"""HEAD wherever there is GET (RFC 9110, section 9.3.2)."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """A middleware that answers HEAD as GET, without the content.

    What is before it sees the method HEAD; what is after it, GET. A stream ends with its headers: the server tells what
    sends it that the client has left.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        # What a request notes for the audit log is read from the state of the outer scope.
        scope.setdefault("state", {})
        await self._app({**scope, "method": "GET"}, receive, send_head)

"""Headers of requests to an opened app, and of its responses, without those that are meant for others."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
    }
)
_REPLACED = frozenset({b"host", b"cookie", b"origin", b"referer", b"forwarded", b"x-real-ip"})
# These apply to the whole host, or to the next app at the port too.
_NOT_FOR_APPS = frozenset({b"clear-site-data", b"strict-transport-security", b"alt-svc", b"service-worker-allowed"})
_OUR_COOKIES = (b"muster", b"__host-muster", b"__secure-muster")
_LOOPBACK = ("127.0.0.1", "localhost")
_SPACE = b" \t"


@dataclass(frozen=True, slots=True)
class AppOrigin:
    """An opened app's origin in the browser, and `local`: the host and port by which requests reach the app.

    `local` is a loopback address, since JupyterLab, MLflow and others refuse any other host. The proxy refuses the
    requests from which they protect themselves so.
    """

    url: str
    local: str
    app_port: int
    authorization: str | None = None

    @property
    def secure(self) -> bool:
        """Return whether the browser reaches the app by TLS, of which the app itself knows nothing."""
        return self.url.startswith("https:")


def to_app(headers: Headers, origin: AppOrigin, client: str) -> Headers:
    """Return the headers of a request for the app; `client` is the address that it came from."""
    named = dict(headers)
    dropped = _HOP_BY_HOP | _REPLACED | _named_by_connection(headers)
    if b"transfer-encoding" in named:
        dropped |= {b"content-length"}
    kept = [
        (name, value)
        for name, value in headers
        if name not in dropped and not name.startswith((b"x-forwarded-", b"sec-websocket-"))
    ]
    kept.insert(0, (b"host", origin.local.encode()))
    local_origin = f"http://{origin.local}".encode()
    if b"origin" in named:
        kept.append((b"origin", local_origin))
    app_url = origin.url.encode()
    if named.get(b"referer", b"").startswith(app_url + b"/"):
        kept.append((b"referer", local_origin + named[b"referer"][len(app_url) :]))
    cookies = app_cookies(value for name, value in headers if name == b"cookie")
    if cookies:
        kept.append((b"cookie", cookies))
    if origin.authorization is not None and b"authorization" not in named:
        kept.append((b"authorization", origin.authorization.encode()))
    parts = urlsplit(origin.url)
    return [
        *kept,
        (b"x-forwarded-for", client.encode()),
        (b"x-forwarded-proto", parts.scheme.encode()),
        (b"x-forwarded-host", parts.netloc.encode()),
    ]


def from_app(headers: Headers, origin: AppOrigin) -> Headers:
    """Return the headers of a response for the browser."""
    dropped = _HOP_BY_HOP | _NOT_FOR_APPS | _named_by_connection(headers)
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        # As HTTP/1.1 has it (RFC 9112, section 6.3), the length counts for nothing then.
        dropped |= {b"content-length"}
    kept: Headers = []
    for name, value in ((name.lower(), value) for name, value in headers):
        if name in dropped or (name == b"set-cookie" and not _is_allowed(value)):
            continue
        if name == b"set-cookie":
            kept.append((name, _cookie_for_browser(value, secure=origin.secure)))
        elif name == b"location":
            kept.append((name, _public_location(value, origin)))
        else:
            kept.append((name, value))
    # An app's URL may have its token.
    for name, value in ((b"referrer-policy", b"same-origin"), (b"cross-origin-resource-policy", b"same-origin")):
        if name not in dict(kept):
            kept.append((name, value))
    # Browsers obey every policy of several, so the app's own applies as well.
    return [*kept, (b"content-security-policy", b"frame-ancestors 'self'")]


def app_cookies(values: Iterable[bytes]) -> bytes:
    """Return a Cookie header without Muster's cookies: browsers send cookies to all ports of a host."""
    pairs = (pair.strip(_SPACE) for value in values for pair in value.split(b";"))
    return b"; ".join(pair for pair in pairs if pair and not _is_ours(pair.partition(b"=")[0]))


def cookies_named(headers: Headers, cookie_name: str) -> Iterator[bytes]:
    """Yield the contents of all cookies of that name."""
    for name, value in headers:
        if name == b"cookie":
            for pair in value.split(b";"):
                key, _, content = pair.strip(_SPACE).partition(b"=")
                if key == cookie_name.encode():
                    yield content


def _is_allowed(cookie: bytes) -> bool:
    name, equals, _ = cookie.partition(b";")[0].partition(b"=")
    # A cookie without a name is sent back as its content alone, which may look like a named one.
    return bool(equals and name.strip(_SPACE)) and not _is_ours(name)


def _is_ours(name: bytes) -> bool:
    return name.strip(_SPACE).lower().startswith(_OUR_COOKIES)


def _cookie_for_browser(cookie: bytes, *, secure: bool) -> bytes:
    """Return an app's cookie without its domain; where the browser uses TLS, as one that is never sent without."""
    first, *attributes = cookie.split(b";")
    names = [one.partition(b"=")[0].strip(_SPACE).lower() for one in attributes]
    kept = [one for one, name in zip(attributes, names, strict=True) if name != b"domain"]
    if secure and b"secure" not in names:
        kept.append(b" Secure")
    return b";".join([first, *kept])


def _public_location(location: bytes, origin: AppOrigin) -> bytes:
    """Return a redirect's location, with each address that the app knows as its own replaced by its origin.

    An app that builds one of `X-Forwarded-Host` alone writes http where the browser uses TLS.
    """
    seen = urlsplit(origin.url)
    try:
        parts = urlsplit(location.decode("ascii"))
        own = parts.netloc == seen.netloc or (
            parts.hostname in _LOOPBACK and parts.port in {origin.app_port, int(origin.local.rpartition(":")[2])}
        )
    except ValueError:
        return location
    if parts.scheme not in {"", "http", "https"} or not own:
        return location
    return parts._replace(scheme=seen.scheme, netloc=seen.netloc, path=parts.path or "/").geturl().encode()


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    values = (value for name, value in headers if name.lower() == b"connection")
    return frozenset(word.strip(_SPACE).lower() for value in values for word in value.split(b","))

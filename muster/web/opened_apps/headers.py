"""What an app hears of a browser, and a browser of an app: their headers, without what is between others."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]

_BETWEEN_TWO = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
    }
)
_WRITTEN_ANEW = frozenset({b"host", b"cookie", b"origin", b"referer", b"forwarded", b"x-real-ip"})
# They hold for the whole host, or for the port's next app too.
_NOT_FOR_APPS = frozenset({b"clear-site-data", b"strict-transport-security", b"alt-svc", b"service-worker-allowed"})
_OUR_COOKIES = (b"muster", b"__host-muster", b"__secure-muster")
_LOOPBACK = ("127.0.0.1", "localhost")
_SPACE = b" \t"


@dataclass(frozen=True, slots=True)
class Between:
    """The two ends. `origin`: the app's in the browser; `local`: host and port that the app finds itself asked by.

    JupyterLab, MLflow and others refuse every host but loopback; what that protects from is refused before them.
    """

    origin: str
    local: str
    app_port: int
    authorization: str | None = None


def to_app(headers: Headers, between: Between, client: str) -> Headers:
    """A request's headers; `client` is the address it came from."""
    named = dict(headers)
    dropped = _BETWEEN_TWO | _WRITTEN_ANEW | _named_by_connection(headers)
    if b"transfer-encoding" in named:
        dropped |= {b"content-length"}
    kept = [
        (name, value)
        for name, value in headers
        if name not in dropped and not name.startswith((b"x-forwarded-", b"sec-websocket-"))
    ]
    kept.insert(0, (b"host", between.local.encode()))
    local_origin = f"http://{between.local}".encode()
    if b"origin" in named:
        kept.append((b"origin", local_origin))
    origin = between.origin.encode()
    if named.get(b"referer", b"").startswith(origin + b"/"):
        kept.append((b"referer", local_origin + named[b"referer"][len(origin) :]))
    cookies = app_cookies(value for name, value in headers if name == b"cookie")
    if cookies:
        kept.append((b"cookie", cookies))
    if between.authorization is not None and b"authorization" not in named:
        kept.append((b"authorization", between.authorization.encode()))
    parts = urlsplit(between.origin)
    return [
        *kept,
        (b"x-forwarded-for", client.encode()),
        (b"x-forwarded-proto", parts.scheme.encode()),
        (b"x-forwarded-host", parts.netloc.encode()),
    ]


def from_app(headers: Headers, between: Between) -> Headers:
    """An answer's headers."""
    dropped = _BETWEEN_TWO | _NOT_FOR_APPS | _named_by_connection(headers)
    kept: Headers = []
    for name, value in ((name.lower(), value) for name, value in headers):
        if name in dropped or (name == b"set-cookie" and not _may_be_set(value)):
            continue
        if name == b"set-cookie":
            kept.append((name, _without_domain(value)))
        elif name == b"location":
            kept.append((name, _seen_from_outside(value, between)))
        else:
            kept.append((name, value))
    # Its URL may hold its token.
    for name, value in ((b"referrer-policy", b"same-origin"), (b"cross-origin-resource-policy", b"same-origin")):
        if name not in dict(kept):
            kept.append((name, value))
    # Browsers obey each of several policies: the app's own stands.
    return [*kept, (b"content-security-policy", b"frame-ancestors 'self'")]


def app_cookies(values: Iterable[bytes]) -> bytes:
    """Browsers send cookies to all ports of a host: ours are not for apps."""
    pairs = (pair.strip(_SPACE) for value in values for pair in value.split(b";"))
    return b"; ".join(pair for pair in pairs if pair and not _is_ours(pair.partition(b"=")[0]))


def cookies_named(headers: Headers, wanted: str) -> Iterator[bytes]:
    for name, value in headers:
        if name == b"cookie":
            for pair in value.split(b";"):
                key, _, content = pair.strip(_SPACE).partition(b"=")
                if key == wanted.encode():
                    yield content


def _may_be_set(cookie: bytes) -> bool:
    name, equals, _ = cookie.partition(b";")[0].partition(b"=")
    # What has no name comes back as whatever its content looks like.
    return bool(equals and name.strip(_SPACE)) and not _is_ours(name)


def _is_ours(name: bytes) -> bool:
    return name.strip(_SPACE).lower().startswith(_OUR_COOKIES)


def _without_domain(cookie: bytes) -> bytes:
    first, *attributes = cookie.split(b";")
    kept = [one for one in attributes if one.partition(b"=")[0].strip(_SPACE).lower() != b"domain"]
    return b";".join([first, *kept])


def _seen_from_outside(location: bytes, between: Between) -> bytes:
    """A redirect to the app as it knows itself leads to where the browser finds it."""
    try:
        parts = urlsplit(location.decode("ascii"))
        own = parts.hostname in _LOOPBACK and parts.port in {between.app_port, int(between.local.rpartition(":")[2])}
    except ValueError:
        return location
    if parts.scheme not in {"", "http", "https"} or not own:
        return location
    return between.origin.encode() + (parts._replace(scheme="", netloc="").geturl() or "/").encode()


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    values = (value for name, value in headers if name.lower() == b"connection")
    return frozenset(word.strip(_SPACE).lower() for value in values for word in value.split(b","))

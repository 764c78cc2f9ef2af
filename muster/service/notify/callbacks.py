"""Post a change to a session's callback."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from muster.core.notify.callback_hosts import CallbackHosts
from muster.core.values.errors import MusterError

_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 10.0
_TOTAL_TIMEOUT_S = 20.0
_MOST_ADDRESSES = 3


class DeliveryError(MusterError):
    """A delivery that its target did not take."""


def post(url: str, message: str, allowed: CallbackHosts) -> None:
    """Post a change to a callback. Raises DeliveryError.

    Redirects are not followed, only the answer's status is read, and no password is sent. The connection goes to an
    address that was checked before: the host's name might resolve to another address the second time.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = requests.utils.get_environ_proxies(url)
    try:
        if requests.utils.select_proxy(url, proxies):
            # The proxy resolves the name, in its own network.
            if allowed.refuse(host):
                raise _not_allowed(host)
            status = _status(url, message, {}, proxies)
        else:
            status = _status_at_addresses(parts, host, message, allowed)
    except requests.Timeout:
        raise DeliveryError(f"{host} did not answer in time") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise DeliveryError(f"{host} cannot be reached: {type(error).__name__}") from None
    if not 200 <= status < 300:
        raise DeliveryError(f"{host} answered with status {status}")


def _status_at_addresses(parts: SplitResult, host: str, message: str, allowed: CallbackHosts) -> int:
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    there = [str(sockaddr[0]) for *_, sockaddr in found]
    addresses = [address for address in dict.fromkeys(there) if allowed.allow(host, ip_address(address))]
    if not addresses:
        raise _not_allowed(host)
    user, at, place = parts.netloc.rpartition("@")
    name = place if place.isascii() else place.encode("idna").decode()
    adapter = _ToAddress(host.rstrip("."))
    *first, last = addresses[:_MOST_ADDRESSES]
    for address in (*first, last):
        shown = f"[{address}]" if ":" in address else address
        url = parts._replace(netloc=f"{user}{at}{shown}:{port}").geturl()
        try:
            return _status(url, message, {"Host": name}, {}, adapter)
        except requests.ConnectionError:
            if address == last:
                raise
    raise _not_allowed(host)


def _status(url: str, message: str, headers: dict[str, str], proxies: Any, adapter: "_Adapter | None" = None) -> int:  # noqa: ANN401
    adapter = adapter or _Adapter()
    with requests.Session() as session, adapter.deadline(_TOTAL_TIMEOUT_S):
        session.trust_env = False
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        answer = session.post(
            url,
            data=message.encode(),
            headers={"Content-Type": "application/json", "User-Agent": "muster", **headers},
            timeout=(_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S),
            proxies=proxies,
            allow_redirects=False,
            stream=True,
        )
        answer.close()
        return int(answer.status_code)


class _Adapter(HTTPAdapter):
    """An adapter that can end its connections: the library's own timeout begins anew with each byte that arrives."""

    def __init__(self) -> None:
        self._connections: list[socket.socket] = []
        self._is_over = False
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as in the base class
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _pools_noting(self._connections)

    @contextmanager
    def deadline(self, timeout_s: float) -> Iterator[None]:
        """End connections after `timeout_s`, and raise requests.Timeout then.

        A cut answer looks like a short one or, where it had not begun, like a broken connection.
        """
        self._is_over = False
        timer = threading.Timer(timeout_s, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except requests.ConnectionError:
            if not self._is_over:
                raise
        finally:
            timer.cancel()
            timer.join()
            for connection in self._connections:
                connection.close()
            self._connections.clear()
        if self._is_over:
            raise requests.Timeout

    def _end(self) -> None:
        self._is_over = True
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _pools_noting(connections: list[socket.socket]) -> dict[str, Any]:
    def noted(made: socket.socket) -> socket.socket:
        # TLS takes the descriptor over, so keep a second one of the same connection.
        connections.append(made.dup())
        return made

    class Plain(urllib3.connection.HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return noted(super()._new_conn())

    class Secure(urllib3.connection.HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return noted(super()._new_conn())

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


class _ToAddress(_Adapter):
    """An adapter that connects to an address and expects the certificate of the host `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as in the base class
        super().init_poolmanager(*arguments, **options, server_hostname=self._name, assert_hostname=self._name)


def _not_allowed(host: str) -> DeliveryError:
    return DeliveryError(f"this site posts no callbacks to {host}; see callback_hosts in muster.yml")

"""How a change is posted to a session's callback."""

import socket
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
_MOST_ADDRESSES = 3


class NotToldError(MusterError):
    """The target did not take it."""


def post(url: str, message: str, allowed: CallbackHosts) -> None:
    """No redirect is followed, nothing of the answer but its status is read, and no password of ours is sent along.

    It goes to an address that was checked: resolved again, the name may give another one. Raises NotToldError.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = requests.utils.get_environ_proxies(url)
    try:
        if requests.utils.select_proxy(url, proxies):
            # The proxy looks for the address, in its own network.
            if allowed.refuse(host):
                raise _not_allowed(host)
            status = _status(url, message, {}, proxies, HTTPAdapter())
        else:
            status = _status_at_addresses(parts, host, message, allowed)
    except requests.Timeout:
        raise NotToldError(f"{host} did not answer in time") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise NotToldError(f"{host} cannot be reached: {type(error).__name__}") from None
    if not 200 <= status < 300:
        raise NotToldError(f"{host} answered with status {status}")


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


def _status(url: str, message: str, headers: dict[str, str], proxies: Any, adapter: HTTPAdapter) -> int:  # noqa: ANN401
    with requests.Session() as session:
        session.trust_env = False
        session.mount("https://", adapter)
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


class _ToAddress(HTTPAdapter):
    """Connects to an address as to a host of that name: its certificate must be the name's."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as it is there
        super().init_poolmanager(*arguments, **options, server_hostname=self._name, assert_hostname=self._name)


def _not_allowed(host: str) -> NotToldError:
    return NotToldError(f"this site posts no callbacks to {host}; see callback_hosts in muster.yml")

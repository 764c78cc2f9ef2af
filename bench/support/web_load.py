"""The load of bench/web.py, each part in a process of its own: subscribers that note what arrives, and a writer."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from muster.core.lifecycle import transitions
from muster.core.model.session import SessionState
from muster.store.store import Store

_ID = re.compile(rb"^id: (\d+)\n", re.MULTILINE)
_BUFFER = 4 << 20
# As in muster/web/static/live.js.
_MIN_INTERVAL_S = 1.0
_PAUSE_FACTOR = 10
_START_TOGETHER = 20


@dataclass
class Received:
    """The changes that one subscriber received: the time of arrival by the change's number."""

    times: dict[int, float] = field(default_factory=dict)
    twice: int = 0
    received_bytes: int = 0
    cut_off: bool = False


def listen(url: str, path: str, headers: Sequence[Mapping[str, str]], control: Connection) -> None:
    """Subscribe once for each of the headers. Report when all are subscribed and, at the end, what they received."""
    asyncio.run(_listen(url, path, headers, control))


async def _listen(url: str, path: str, headers: Sequence[Mapping[str, str]], control: Connection) -> None:
    received = [Received() for _ in headers]
    ready = asyncio.Semaphore(_START_TOGETHER)
    connected: list[asyncio.Event] = [asyncio.Event() for _ in headers]
    tasks = [
        asyncio.create_task(_one(url, path, given, note, ready, event))
        for given, note, event in zip(headers, received, connected, strict=True)
    ]
    for event, task in zip(connected, tasks, strict=True):
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        if not event.is_set():
            task.result()
            raise SystemExit("a subscriber was cut off before its stream began")
    control.send("ready")
    await asyncio.to_thread(control.recv)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    control.send(received)


async def _one(
    url: str,
    path: str,
    headers: Mapping[str, str],
    note: Received,
    ready: asyncio.Semaphore,
    connected: asyncio.Event,
    changed: asyncio.Event | None = None,
) -> None:
    place = urlsplit(url)
    lines = [f"GET {path} HTTP/1.1", f"Host: {place.netloc}", *(f"{name}: {value}" for name, value in headers.items())]
    async with ready:
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=_BUFFER)
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"{path}: {head.split(bytes(2))[0].decode(errors='replace')}")
        await reader.readuntil(b": since ")
        connected.set()
    rest = b""
    while data := await reader.read(1 << 18):
        now = time.time()
        note.received_bytes += len(data)
        *whole, rest = (rest + data).rpartition(b"\n\n")
        for number in map(int, _ID.findall(b"".join(whole))):
            note.twice += number in note.times
            note.times.setdefault(number, now)
            if changed is not None:
                changed.set()
    note.cut_off = True
    writer.close()


@dataclass
class Refreshed:
    """The seconds that each refresh of one open page took."""

    took_s: list[float] = field(default_factory=list)


def keep_open(url: str, path: str, headers: Sequence[Mapping[str, str]], control: Connection) -> None:
    """Open a page once for each of the headers, and refresh it as `static/live.js` does where each change is shown."""
    asyncio.run(_keep_open(url, path, headers, control))


async def _keep_open(url: str, path: str, headers: Sequence[Mapping[str, str]], control: Connection) -> None:
    refreshed = [Refreshed() for _ in headers]
    changes = [asyncio.Event() for _ in headers]
    ready = asyncio.Semaphore(_START_TOGETHER)
    connected: list[asyncio.Event] = [asyncio.Event() for _ in headers]
    tasks = [
        task
        for given, mine, changed, event in zip(headers, refreshed, changes, connected, strict=True)
        for task in (
            asyncio.create_task(_one(url, "/live", given, Received(), ready, event, changed)),
            asyncio.create_task(_refresh(url, path, given, changed, mine)),
        )
    ]
    await asyncio.gather(*(event.wait() for event in connected))
    control.send("ready")
    await asyncio.to_thread(control.recv)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [str(result) for result in results if isinstance(result, Exception)]
    control.send(failed or refreshed)


async def _refresh(
    url: str, path: str, headers: Mapping[str, str], changed: asyncio.Event, refreshed: Refreshed
) -> None:
    """Request the page's live part after changes: once a second at most, and with pauses of ten times its duration."""
    place = urlsplit(url)
    # The server closes what is idle for some seconds, also while a request is on its way.
    sent = {**headers, "HX-Request": "true", "Connection": "close"}
    lines = [f"GET {path} HTTP/1.1", f"Host: {place.netloc}", *(f"{name}: {value}" for name, value in sent.items())]
    while True:
        await changed.wait()
        changed.clear()
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=_BUFFER)
        writer.write("\r\n".join([*lines, "", ""]).encode())
        answer = await reader.read(-1)
        writer.close()
        took = time.monotonic() - began
        if b" 200 " not in answer.split(b"\r\n")[0]:
            raise ValueError(f"{path}: {answer[:300].decode(errors='replace')}")
        refreshed.took_s.append(took)
        await asyncio.sleep(max(_MIN_INTERVAL_S - took, _PAUSE_FACTOR * took))


def write(database: str, session_ids: Sequence[str], per_second: float, seconds: float) -> None:
    """Write `per_second` changes of sessions, back and forth, each committed on its own, for `seconds`."""
    store = Store(database)
    there = list(store.get(session_ids).values())
    began = time.time()
    for number in range(int(per_second * seconds)):
        time.sleep(max(0.0, began + number / per_second - time.time()))
        place = number % len(there)
        session = there[place]
        forth = session.state is SessionState.PENDING
        to, reason = (SessionState.SCHEDULED, "placed on a1") if forth else (SessionState.PENDING, "back in the queue")
        if not store.apply([transitions.transition(session, to, reason, time.time())]):
            raise SystemExit(f"session {session.name} was changed by another writer")
        there[place] = replace(session, state=to)
    store.close()

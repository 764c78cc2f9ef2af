"""Telling the world of changes: callbacks by HTTP, hooks as programs; beside the passes, never in one.

Whoever works the queue does this too. A target is told of a session's changes in their order and at least once; one
that is slow or fails delays no other.
"""

import json
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from muster.core.notify.callback_hosts import CallbackHosts
from muster.core.notify.deliveries import Delivery
from muster.core.values.errors import PassInProgressError, StoreUnavailableError
from muster.service.notify.callbacks import NotToldError, post
from muster.service.trouble import Trouble
from muster.settings import Settings
from muster.store.database.lock import exclusive
from muster.store.deliveries import Deliveries
from muster.store.store import Store

log = logging.getLogger("muster.couriers")
_POLL_S = 1.0
_RETRY_S = 5.0
# Hooks are the site's: users' callbacks take none of their places.
_MOST_HOOKS = 8
_MOST_CALLBACKS = 16
_MOST_OF_ONE_OWNER = 4
_MOST_AT_ONE_PLACE = 2
_HOOK_TIMEOUT_S = 30.0
_ONE_PASS_S = 15.0


@contextmanager
def couriers_at_work(settings: Settings, store: Store) -> Iterator[None]:
    """Deliver changes in a thread of its own until the block ends."""
    stop = threading.Event()
    couriers = Couriers(store.deliveries, settings.hooks_dir, settings.allowed_callbacks)

    def work() -> None:
        trouble = Trouble(log)
        with exclusive(_lock(settings), wait=True):
            while not stop.is_set():
                try:
                    couriers.send_out()
                    trouble.over("deliveries go on")
                except StoreUnavailableError as error:
                    trouble.note(f"deliveries wait: {error}")
                    stop.wait(_RETRY_S)
                couriers.wait_for_news(_POLL_S)

    threading.Thread(target=work, name="couriers", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def deliver_once(settings: Settings, store: Store) -> None:
    """Deliver what is due and what follows from that, for a bounded time; the next pass delivers the rest."""
    couriers = Couriers(store.deliveries, settings.hooks_dir, settings.allowed_callbacks)
    give_up_at = time.monotonic() + _ONE_PASS_S
    try:
        with exclusive(_lock(settings), wait=False):
            while couriers.send_out() and time.monotonic() < give_up_at:
                couriers.wait_for_news(_POLL_S)
    except PassInProgressError:
        return


def hooks_in(directory: Path) -> list[str]:
    """Return the names of the executable files there, sorted."""
    try:
        found = sorted(path for path in directory.iterdir() if path.is_file() and os.access(path, os.X_OK))
    except OSError:
        return []
    return [path.name for path in found if not path.name.startswith(".")]


class Couriers:
    """`send_out` is called by one thread; each delivery has a thread of its own."""

    def __init__(self, deliveries: Deliveries, hooks_dir: Path, callback_hosts: CallbackHosts) -> None:
        self._deliveries = deliveries
        self._hooks_dir = hooks_dir
        self._callback_hosts = callback_hosts
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, str], Delivery] = {}
        self._news = threading.Event()

    def send_out(self) -> bool:
        """Begins what is due. Whether anything is under way. Raises StoreUnavailableError."""
        now = time.time()
        self._news.clear()
        self._deliveries.gather(hooks_in(self._hooks_dir), now)
        with self._lock:
            busy = dict(self._under_way)
        # Read after that: what ended in between is not due any more.
        for delivery in self._deliveries.due(now):
            if delivery.queue in busy or not _has_room(delivery, busy.values()):
                continue
            busy[delivery.queue] = delivery
            with self._lock:
                self._under_way[delivery.queue] = delivery
            threading.Thread(target=self._carry, args=(delivery,), name="courier", daemon=True).start()
        return bool(busy)

    def wait_for_news(self, timeout_s: float) -> None:
        """Wait until a delivery has ended, `timeout_s` at the most."""
        self._news.wait(timeout_s)

    def _carry(self, delivery: Delivery) -> None:
        try:
            try:
                self._tell(delivery)
            except NotToldError as error:
                log.warning("session %s: %s failed: %s", delivery.session_name, delivery.target, error)
                self._deliveries.failed(delivery, str(error), time.time())
            else:
                self._deliveries.done(delivery)
        except StoreUnavailableError as error:
            log.warning("%s; %s is told again", error, delivery.target)
        finally:
            with self._lock:
                del self._under_way[delivery.queue]
            self._news.set()

    def _tell(self, delivery: Delivery) -> None:
        """Raises NotToldError. A hook that was removed, and a callback that nobody wants, count as told."""
        message = json.dumps(delivery.message())
        if delivery.hook is not None:
            path = self._hooks_dir / delivery.hook
            if path.exists():
                _run(path, message)
        elif delivery.url is not None:
            post(delivery.url, message, self._callback_hosts)


def _lock(settings: Settings) -> Path:
    return settings.state_dir / "couriers.lock"


def _has_room(delivery: Delivery, under_way: Collection[Delivery]) -> bool:
    """Return whether the delivery may begin beside these. Hooks have room of their own, and so has each owner."""
    beside = [other for other in under_way if (other.hook is None) == (delivery.hook is None)]
    at_place = sum(_place(other) == _place(delivery) for other in beside)
    if delivery.hook is not None:
        return at_place < _MOST_AT_ONE_PLACE and len(beside) < _MOST_HOOKS
    of_owner = sum(other.owner == delivery.owner for other in beside)
    return at_place < _MOST_AT_ONE_PLACE and of_owner < _MOST_OF_ONE_OWNER and len(beside) < _MOST_CALLBACKS


def _place(delivery: Delivery) -> tuple[str, str]:
    """Return where a delivery goes: those of one owner to one place may delay each other."""
    if delivery.hook is not None or delivery.url is None:
        return "", delivery.target
    return delivery.owner, urlsplit(delivery.url).netloc


def _run(path: Path, message: str) -> None:
    with ExitStack() as stack:
        try:
            said = stack.enter_context(tempfile.TemporaryFile())
            done = subprocess.run(
                [path],
                input=message.encode(),
                stdout=said,
                stderr=said,
                cwd="/",
                timeout=_HOOK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotToldError(f"it was killed after {_HOOK_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise NotToldError(f"it cannot be run: {error.strerror or error}") from None
        if done.returncode:
            said.seek(0)
            lines = said.read(65536).decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            raise NotToldError(f"it ended with exit code {done.returncode}{': ' if last else ''}{last[:200]}")

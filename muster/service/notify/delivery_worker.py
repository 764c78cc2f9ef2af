"""Send deliveries: changes to callbacks by HTTP and to hooks, which are programs. This never holds up a pass.

The process that works the queue sends them too. A target gets a session's changes in their order, each at least once.
A target that is slow or fails delays no other.
"""

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from muster.core.notify.callback_hosts import CallbackHosts
from muster.core.notify.deliveries import Delivery
from muster.core.values.errors import PassInProgressError, StoreUnavailableError
from muster.service.notify.callbacks import DeliveryError, post
from muster.service.trouble import Trouble
from muster.settings import Settings
from muster.store.database.lock import exclusive
from muster.store.deliveries import Deliveries
from muster.store.store import Store

log = logging.getLogger("muster.couriers")
_POLL_S = 1.0
_RETRY_S = 5.0
# Hooks belong to the site, so users' callbacks take none of their places.
_MOST_HOOKS = 8
_MOST_CALLBACKS = 16
_MOST_OF_ONE_OWNER = 4
_MOST_AT_ONE_PLACE = 2
_HOOK_TIMEOUT_S = 30.0
_LONGEST_NAME = 200
_ONE_PASS_S = 15.0


@contextmanager
def delivery_thread(settings: Settings, store: Store) -> Iterator[None]:
    """Deliver changes in a thread of its own until the block ends."""
    stop = threading.Event()
    worker = DeliveryWorker(store.deliveries, settings.hooks_dir, settings.allowed_callbacks)

    def work() -> None:
        trouble = Trouble(log)
        with exclusive(_lock(settings), wait=True):
            while not stop.is_set():
                try:
                    worker.send_out()
                    trouble.over("deliveries go on")
                except StoreUnavailableError as error:
                    trouble.note(f"deliveries wait: {error}")
                    stop.wait(_RETRY_S)
                worker.wait_for_news(_POLL_S)

    threading.Thread(target=work, name="deliveries", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def deliver_once(settings: Settings, store: Store) -> None:
    """Send due deliveries, and those that become due meanwhile, for some 15 s; the next pass sends the rest."""
    worker = DeliveryWorker(store.deliveries, settings.hooks_dir, settings.allowed_callbacks)
    give_up_at = time.monotonic() + _ONE_PASS_S
    try:
        with exclusive(_lock(settings), wait=False):
            while worker.send_out() and time.monotonic() < give_up_at:
                worker.wait_for_news(_POLL_S)
    except PassInProgressError:
        return


def hooks_in(directory: Path) -> list[str]:
    """Return the names of the hooks in a directory, sorted: its executable files that are not hidden.

    A name that is longer than the database takes, or no text, is no hook's.
    """
    try:
        found = sorted(path for path in directory.iterdir() if path.is_file() and os.access(path, os.X_OK))
    except OSError:
        return []
    names = [path.name for path in found if not path.name.startswith(".")]
    return [name for name in names if name.isprintable() and len(name) <= _LONGEST_NAME]


class DeliveryWorker:
    """The sender of deliveries. One thread calls `send_out`; each delivery has a thread of its own."""

    def __init__(self, deliveries: Deliveries, hooks_dir: Path, callback_hosts: CallbackHosts) -> None:
        self._deliveries = deliveries
        self._hooks_dir = hooks_dir
        self._callback_hosts = callback_hosts
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, str], Delivery] = {}
        self._news = threading.Event()

    def send_out(self) -> bool:
        """Begin the due deliveries; return whether any is under way. Raises StoreUnavailableError."""
        now = time.time()
        self._news.clear()
        self._deliveries.gather(hooks_in(self._hooks_dir), now)
        with self._lock:
            busy = dict(self._under_way)
        # Read the due ones after `busy`: a delivery that ended in between is not due any more.
        for delivery in self._deliveries.due(now):
            if delivery.queue in busy or not _has_room(delivery, busy.values()):
                continue
            busy[delivery.queue] = delivery
            with self._lock:
                self._under_way[delivery.queue] = delivery
            threading.Thread(target=self._deliver, args=(delivery,), name="delivery", daemon=True).start()
        return bool(busy)

    def wait_for_news(self, timeout_s: float) -> None:
        """Wait until a delivery has ended, `timeout_s` at the most."""
        self._news.wait(timeout_s)

    def _deliver(self, delivery: Delivery) -> None:
        try:
            try:
                self._send(delivery)
            except DeliveryError as error:
                log.warning("session %s: %s failed: %s", delivery.session_name, delivery.target, error)
                self._deliveries.failed(delivery, str(error), time.time())
            else:
                self._deliveries.done(delivery)
        except StoreUnavailableError as error:
            log.warning("%s; %s gets the change again", error, delivery.target)
        finally:
            with self._lock:
                del self._under_way[delivery.queue]
            self._news.set()

    def _send(self, delivery: Delivery) -> None:
        """Send one delivery. Raises DeliveryError. A hook or callback that was removed meanwhile is left out."""
        message = json.dumps(delivery.message())
        if delivery.hook is not None:
            path = self._hooks_dir / delivery.hook
            if path.exists():
                _run(path, message)
        elif delivery.url is not None:
            post(delivery.url, message, self._callback_hosts)


def _lock(settings: Settings) -> Path:
    # The name from older versions, so that an old and a new process exclude each other during an upgrade.
    return settings.state_dir / "couriers.lock"


def _has_room(delivery: Delivery, under_way: Collection[Delivery]) -> bool:
    """Return whether the delivery may begin beside those under way. Hooks and each owner have places of their own."""
    beside = [other for other in under_way if (other.hook is None) == (delivery.hook is None)]
    at_place = sum(_place(other) == _place(delivery) for other in beside)
    if delivery.hook is not None:
        return at_place < _MOST_AT_ONE_PLACE and len(beside) < _MOST_HOOKS
    of_owner = sum(other.owner == delivery.owner for other in beside)
    return at_place < _MOST_AT_ONE_PLACE and of_owner < _MOST_OF_ONE_OWNER and len(beside) < _MOST_CALLBACKS


def _place(delivery: Delivery) -> tuple[str, str]:
    """Return where a delivery goes. Deliveries of one owner to one place may delay each other."""
    if delivery.hook is not None or delivery.url is None:
        return "", delivery.target
    return delivery.owner, urlsplit(delivery.url).netloc


def _run(path: Path, message: str) -> None:
    with ExitStack() as stack:
        try:
            said = stack.enter_context(tempfile.TemporaryFile())
            # With a group of its own, for what it starts may hang as well.
            hook = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=said, stderr=said, cwd="/", process_group=0)
            with hook:
                try:
                    hook.communicate(message.encode(), _HOOK_TIMEOUT_S)
                except BaseException:
                    # Also of an interrupt, which is no Exception: nothing of the hook stays behind. Raised again.
                    with suppress(ProcessLookupError):
                        os.killpg(hook.pid, signal.SIGKILL)
                    raise
        except subprocess.TimeoutExpired:
            raise DeliveryError(f"it was killed after {_HOOK_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise DeliveryError(f"it cannot be run: {error.strerror or error}") from None
        if hook.returncode:
            said.seek(0)
            lines = said.read(65536).decode(errors="replace").split("\n")
            texts = ("".join(filter(str.isprintable, line)).strip() for line in reversed(lines))
            last = next(filter(None, texts), "")
            raise DeliveryError(f"it ended with exit code {hook.returncode}{': ' if last else ''}{last[:200]}")

"""The two processes of `muster web`: one speaks to the world as a user without rights, the other is its broker."""

import importlib
import logging
import os
import pwd
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from ssl import SSLContext

from muster.core.values.errors import BadInputError
from muster.core.values.garbage import keep_what_is_loaded
from muster.service.scheduler.compiled_code import compiling_beside, is_compiled
from muster.service.service import Service
from muster.settings import LogFormat
from muster.web.rendering import STATIC, load_templates
from muster.web.separation.broker import Broker
from muster.web.separation.client import brokered_service
from muster.web.separation.confinement import give_up_rights
from muster.web.separation.line import Line, NoBrokerError
from muster.web.separation.unix_door import UnixDoor, listening_socket
from muster.web.server import ServerOptions, serve_pages

log = logging.getLogger("muster.broker")
USER = "muster-web"
# Where nobody has made the user, as on a laptop.
_FALLBACK_USER = "nobody"
_ENDS = (signal.SIGTERM, signal.SIGINT)
# What libraries load when it is needed first: by then the server may not be able to read where Python is installed.
_LOADED_LATE = (
    "anyio._backends._asyncio",
    "encodings.ascii",
    "encodings.idna",
    "encodings.latin_1",
    "encodings.unicode_escape",
    "fastapi.telemetry._runtime",
    "uvicorn.lifespan.off",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
)


def serve(
    options: ServerOptions,
    opened_service: Callable[[], AbstractContextManager[Service]],
    log_as: Callable[[LogFormat], None],
) -> None:
    """Serve until SIGTERM or SIGINT; end with the server's exit code if that is not 0. Raises BadInputError.

    The server begins before anything is read that it must not know.
    """
    options.check()
    for name in _LOADED_LATE:
        importlib.import_module(name)
    account = _account()
    tls = options.tls_context()
    listening = options.bound_sockets()
    local = None if options.unix_socket is None else listening_socket(options.unix_socket)
    control, servers_control = socket.socketpair()
    # Each message keeps the connection that came with it.
    hand_over, door = socket.socketpair(type=socket.SOCK_SEQPACKET)
    server = os.fork()
    if server == 0:
        control.close()
        hand_over.close()
        if local is not None:
            local.close()
        _become_server(options, listening, tls, servers_control, door, account, log_as)
        return
    for one in (servers_control, door, *listening):
        one.close()
    _pass_on_ends(server)
    try:
        # A server that ends before its first request has said why.
        if control.recv(1, socket.MSG_PEEK):
            with opened_service() as service:
                log_as(service.settings.log_format)
                if account is not None:
                    log.info("the web server is process %d, of user %s", server, account.pw_name)
                if account is not None:
                    service.unix_callers.refuse_server(account.pw_uid)
                way_in = nullcontext() if local is None else UnixDoor(local, hand_over, service.unix_callers)
                with service.served(), way_in, _queue_ahead(service):
                    keep_what_is_loaded()
                    Broker(service, None if account is None else (account.pw_uid, account.pw_gid)).serve(control)
    finally:
        # It ends then, if it has not before.
        control.close()
        code = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    if code:
        sys.exit(code if code > 0 else 128 - code)


def _pass_on_ends(server: int) -> None:
    """Have a thread send the server SIGTERM when this process gets SIGTERM or SIGINT.

    Python runs a handler in the main thread, and where the signal comes just before a system call, not until that call
    has ended. The main thread waits for the server, which would wait for this signal.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def pass_on() -> None:
        while number := os.read(reading, 1):
            if number[0] in _ENDS:
                with suppress(ProcessLookupError):
                    os.kill(server, signal.SIGTERM)

    for number in _ENDS:
        signal.signal(number, lambda *_: None)
    # The interpreter writes each number here at once, whatever its threads do.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=pass_on, name="signals", daemon=True).start()


def _queue_ahead(service: Service) -> AbstractContextManager[None]:
    """Have the queue read and decided before the server listens, so that no request waits for what this takes once.

    Where nothing is compiled, that takes a minute, for which nobody should be kept out: it is done in the context,
    beside the requests.
    """
    if is_compiled():
        _read_ahead(service)
        return nullcontext()
    return compiling_beside(lambda: _read_ahead(service))


def _read_ahead(service: Service) -> None:
    try:
        service.read_ahead()
    except Exception:
        # Whatever is wrong, such as a site's plugin, each request for the queue says so: the others have an answer.
        log.exception("the queue could not be read")


def _account() -> pwd.struct_passwd | None:
    """Return whose process the server shall be; None where this is no root's, who alone can choose."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        return pwd.getpwnam(_FALLBACK_USER)


def _become_server(
    options: ServerOptions,
    listening: Sequence[socket.socket],
    tls: SSLContext | None,
    control: socket.socket,
    door: socket.socket,
    account: pwd.struct_passwd | None,
    log_as: Callable[[LogFormat], None],
) -> None:
    # Ctrl-C is for the broker, which passes it on.
    os.setpgid(0, 0)
    give_up_rights(account)
    if not os.access(STATIC, os.R_OK | os.X_OK):
        raise BadInputError(
            f"{STATIC} cannot be read by user {pwd.getpwuid(os.getuid()).pw_name}, who the web server is;"
            " install Muster where all users can read it, such as below /opt"
        )
    load_templates()
    try:
        service = brokered_service(Line(control))
    except NoBrokerError:
        # It has said why.
        os._exit(1)
    log_as(service.settings.log_format)
    threading.Thread(target=_end_with, args=(control,), name="broker", daemon=True).start()
    serve_pages(service, options, listening, tls, door)


def _end_with(control: socket.socket) -> None:
    """End this process when its broker ends, which never sends anything."""
    control.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)

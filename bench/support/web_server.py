"""The server that `bench/web.py` measures: a real `muster web` on a database that is filled before, and its clients."""

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import yaml

from muster.core.model.session import Session, SessionState
from muster.core.model.token import Scope
from muster.core.model.wait import Wait, WaitCode
from muster.service.identity.tokens import Tokens
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on

USERS = 20


@dataclass(frozen=True)
class Served:
    """A server with sessions in its database. `admin` and `users` are headers of their programs and browsers."""

    url: str
    process: int
    database: str
    admin: Mapping[str, str]
    users: Sequence[Mapping[str, str]]
    admin_browser: Mapping[str, str]
    user_browsers: Sequence[Mapping[str, str]]

    def processes(self) -> list[int]:
        """Return the server's processes: the broker, and the one that it keeps without rights."""
        children = Path(f"/proc/{self.process}/task/{self.process}/children").read_text(encoding="utf-8").split()
        return [self.process, *map(int, children)]

    def cpu_s(self) -> float:
        return sum(_cpu_s(process) for process in self.processes())

    def memory_mib(self) -> float:
        return sum(_own_kib(process) for process in self.processes()) / 1024


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_kib(process: int) -> int:
    """Return a process' memory, with its part of what it shares with others."""
    (line,) = [
        line
        for line in Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        if line.startswith("Pss:")
    ]
    return int(line.split()[1])


def many_sessions(count: int, ended: int) -> Iterator[Session]:
    """Yield sessions: first those that have ended; of the others, a fifth run with three kernels and the rest wait."""
    began = time.time() - 10 * (count + ended)
    for number in range(count + ended):
        is_ended, runs = number < ended, number % 5 == 0
        size = 3 if runs and not is_ended else 1
        made = make_session(
            number + 1,
            name=f"train-{number}",
            owner=f"user-{number % USERS}",
            project=f"project-{number % 7}",
            cluster_size=size,
            env={"EPOCHS": str(number), "DATA": "/data/imagenet"},
            command=f"python train.py --seed {number}" if is_ended else None,
        )
        if runs and not is_ended:
            made = placed_on(made, "agent-1", "agent-2", "agent-3")
        if is_ended:
            made = replace(made, state=SessionState.TERMINATED, reason="ended", ended_at=began + 10 * number + 9)
        yield replace(made, submitted_at=began + 10 * number)


def fill(store: Store, count: int, ended: int) -> None:
    made = list(many_sessions(count, ended))
    for start in range(0, len(made), 1000):
        store.add(made[start : start + 1000])
    store.agents.save([make_agent(f"agent-{number}", cpus=64) for number in (1, 2, 3)])
    waits = [Wait(WaitCode.BUSY, f"no room: {number} of 64 CPUs are free") for number in range(50)]
    pending = [session for session in made if session.state is SessionState.PENDING]
    store.save_waits({session.id: waits[number % len(waits)] for number, session in enumerate(pending)})


@dataclass(frozen=True)
class Prepared:
    """A control node with sessions in its database, before its server starts. The first secret is the admin's."""

    config: Path
    database: str
    secrets: Sequence[str]


def prepared(directory: Path, database: str | None, count: int, ended: int) -> Prepared:
    url = database or f"sqlite:///{directory / 'state' / 'muster.db'}"
    (directory / "state").mkdir(mode=0o700)
    names = {"state_dir": "state", "inventory": "inventory.yml", "catalog": "images.yml"}
    paths = {key: str(directory / name) for key, name in names.items()}
    config = directory / "muster.yml"
    config.write_text(
        yaml.safe_dump({**paths, "database": url, "web": {"requests_per_minute": None, "event_streams": 10_000}}),
        encoding="utf-8",
    )
    store = Store(url)
    fill(store, count, ended)
    tokens = [Tokens(store).create("bench-admin", "root", Scope.ADMIN, None)]
    tokens += [Tokens(store).create(f"bench-{n}", f"user-{n}", Scope.USER, None) for n in range(USERS)]
    store.close()
    return Prepared(config, url, [secret for _, secret in tokens])


@contextmanager
def served(ready: Prepared, browsers: Sequence[Mapping[str, str]] = ()) -> Iterator[Served]:
    """Start a server. Sign in all users unless there are headers of browsers that have signed in before."""
    headers = [{"Authorization": f"Bearer {secret}"} for secret in ready.secrets]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [str(Path(sys.executable).parent / "muster"), "web", "--port", str(port)]
    environment = {**os.environ, "MUSTER_CONFIG": str(ready.config)}
    lines = ready.config.with_name("server.log")
    with lines.open("wb") as log:
        server = subprocess.Popen(program, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_ready(server, port, lines)
        known = browsers or [_signed_in(port, secret) for secret in ready.secrets]
        address = f"http://127.0.0.1:{port}"
        yield Served(address, server.pid, ready.database, headers[0], headers[1:], known[0], known[1:])
    finally:
        server.terminate()
        server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    while True:
        if server.poll() is not None:
            raise SystemExit(log.read_text(encoding="utf-8"))
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


def _signed_in(port: int, secret: str) -> dict[str, str]:
    """Sign in, and return the headers that the browser sends from then on."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://127.0.0.1:{port}"}
    connection.request("POST", "/sign-in", urlencode({"token": secret}), form)
    answer = connection.getresponse()
    cookie = answer.getheader("Set-Cookie")
    if cookie is None:
        raise SystemExit(f"/sign-in: {answer.status} without a cookie")
    connection.close()
    return {"Cookie": cookie.partition(";")[0]}


class Client:
    """A client that keeps one connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def milliseconds(self, path: str, headers: Mapping[str, str]) -> float:
        """Request a path; return the milliseconds until its whole answer has arrived."""
        began = time.monotonic()
        self._connection.request("GET", path, headers=dict(headers))
        answer = self._connection.getresponse()
        body = answer.read()
        took = (time.monotonic() - began) * 1000
        if answer.status != 200 or not body:
            raise SystemExit(f"{path}: {answer.status} {body[:300]!r}")
        return took

"""A PostgreSQL server of the tests' own: in a directory that goes with it, on a port that nobody else has."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

import psycopg

_USER = "postgres"
_ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
# Nothing here outlives the tests, so a crash of the machine may lose it, and nothing grows so large that it needs to be
# vacuumed: with dozens of databases that would be every other second.
_CONFIGURATION = """
fsync = off
full_page_writes = off
wal_level = replica
autovacuum = off
max_connections = 60
listen_addresses = '127.0.0.1'
"""
_ACCESS = """
host all guarded 127.0.0.1/32 scram-sha-256
host all,replication all 127.0.0.1/32 trust
"""


class PostgresqlServer:
    """A cluster of databases; `url` names one of them for the store.

    What was committed survives that the server is killed only with `keeps_commits`. Only one that `replicates` can have
    a standby.
    """

    def __init__(self, directory: Path, *, keeps_commits: bool = False, replicates: bool = False) -> None:
        self._take(directory)
        arguments = ("--pgdata", str(self._data), "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8")
        _run("initdb", "--username", _USER, *arguments)
        waits = "on" if keeps_commits else "off"
        senders = 2 if replicates else 0
        self._configure(f"synchronous_commit = {waits}\nmax_wal_senders = {senders}\n{_CONFIGURATION}")
        (self._data / "pg_hba.conf").write_text(_ACCESS, encoding="utf-8")
        self.start()
        self.run("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        # A new database's blocks are copied, as before version 15: to log each one as well takes three times the CPU.
        ((version,),) = self.run("SHOW server_version_num")
        self._strategy = "STRATEGY file_copy" if int(version) >= 150000 else ""

    @classmethod
    def recovered(cls, stopped: "PostgresqlServer", directory: Path) -> "PostgresqlServer":
        """Start a server on a copy of one that is stopped, as one does after its disk was lost."""
        server = cls.__new__(cls)
        server._take(directory)
        shutil.copytree(stopped._data, server._data)
        (server._data / "recovery.signal").touch()
        server._configure("restore_command = 'false'")
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{_USER}:{_USER}", str(directory)], check=True)
        server.start()
        return server

    @classmethod
    def standby(cls, primary: "PostgresqlServer", directory: Path) -> "PostgresqlServer":
        """Start a hot standby of a primary that runs."""
        server = cls.__new__(cls)
        server._take(directory)
        place = ("--pgdata", str(server._data), "--host=127.0.0.1", f"--port={primary.port}", f"--username={_USER}")
        options = ("--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf", "--no-sync")
        _run("pg_basebackup", *place, *options)
        server._configure("")
        server.start()
        return server

    def catch_up_with(self, primary: "PostgresqlServer") -> None:
        """Wait until this standby has what is committed on the primary."""
        ((newest,),) = primary.run("SELECT pg_current_wal_flush_lsn()")
        while self.run("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", newest) != [(True,)]:
            time.sleep(0.02)

    def lose_the_primary(self) -> None:
        """Let this standby get nothing more of its primary, which does not notice."""
        self.run("ALTER SYSTEM SET primary_conninfo = ''")
        self.run("SELECT pg_reload_conf()")
        while self.run("SELECT pid FROM pg_stat_wal_receiver"):
            time.sleep(0.02)

    def promote(self) -> None:
        """Make this standby a primary of its own."""
        assert self.run("SELECT pg_promote()") == [(True,)]

    def _take(self, directory: Path) -> None:
        self._data = directory / "data"
        self._numbers = count(1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(directory, _USER, _USER)

    def _configure(self, lines: str) -> None:
        own = f"port = {self.port}\nunix_socket_directories = '{self._data.parent}'\n"
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(own + lines)

    def start(self) -> None:
        # Ends with the tests, even when these are killed.
        tied = ["setpriv", "--pdeathsig", "INT", *_as_user()[1:]]
        command = [*tied, _program("postgres"), "-D", str(self._data)]
        log = (self._data.parent / "log").open("a", encoding="utf-8")
        with log:
            self._process = subprocess.Popen(command, env=_ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT)
        while True:
            try:
                self.run("SELECT 1")
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self._data.parent / "log").read_text(encoding="utf-8")
                time.sleep(0.02)
            else:
                return

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends all connections; by SIGQUIT, what was written with them."""
        self._process.send_signal(how)
        self._process.wait()

    def kill(self) -> None:
        """End the server's first process at once; the others end when they notice."""
        self.stop(signal.SIGKILL)

    def start_again(self, within_s: float = 60) -> None:
        """Start the server after it was killed, once all of its processes have ended."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                self.start()
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def url(self, database: str, user: str = _USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def new_database(self, template: str = "template0") -> str:
        name = f"test{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} {self._strategy}")
        return name

    def end_connections(self, database: str, last_statement: str) -> int:
        """Ends those of the database whose last statement fits the LIKE pattern; how many these were."""
        ended = self.run(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s AND query LIKE %s",
            database,
            last_statement,
        )
        return ended[0][0]

    def wait_for_connections(self, database: str, last_statement: str, number: int) -> None:
        """Wait until so many connections to the database have made the statement (a LIKE pattern) last."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND query LIKE %s"
        while self.run(query, database, last_statement) != [(number,)]:
            time.sleep(0.02)

    def run(self, statement: str, *values: object) -> list[tuple]:
        with self._connected(_USER) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def run_in(self, database: str, *statements: str) -> None:
        with self._connected(database) as connection:
            connection.execute("; ".join(statements))

    def _connected(self, database: str) -> psycopg.Connection:
        return psycopg.connect(host="127.0.0.1", port=self.port, user=_USER, dbname=database, autocommit=True)


def postgresql_server(
    *, keeps_commits: bool = False, replicates: bool = False
) -> AbstractContextManager[PostgresqlServer]:
    return _serving(lambda place: PostgresqlServer(place, keeps_commits=keeps_commits, replicates=replicates))


def standby_server(primary: PostgresqlServer) -> AbstractContextManager[PostgresqlServer]:
    """Open a hot standby of a primary that runs."""
    return _serving(lambda place: PostgresqlServer.standby(primary, place))


def recovered_server(stopped: PostgresqlServer) -> AbstractContextManager[PostgresqlServer]:
    """Open a server on a copy of one that is stopped, which begins a history of its own as after a backup."""
    return _serving(lambda place: PostgresqlServer.recovered(stopped, place))


@contextmanager
def _serving(started_in: Callable[[Path], PostgresqlServer]) -> Iterator[PostgresqlServer]:
    # Not below pytest's directory, which is closed to the server's user.
    with tempfile.TemporaryDirectory(prefix="muster-postgresql-") as directory:
        server = started_in(Path(directory))
        yield server
        server.stop(signal.SIGQUIT)


def _run(name: str, *arguments: str) -> None:
    """Run a program of the server's to its end, as the server's user."""
    command = [*_as_user(), _program(name), *arguments]
    done = subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _as_user() -> list[str]:
    """Return words to put before a command that the server's user runs."""
    user = [f"--reuid={_USER}", f"--regid={_USER}", "--init-groups"] if os.geteuid() == 0 else []
    return ["setpriv", *user]


def _program(name: str) -> str:
    """Return the path of a server's program: Debian keeps these outside PATH, by version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    program = str(found[-1]) if found else shutil.which(name)
    assert program, f"there is no {name}: install PostgreSQL's server (Debian: apt-get install postgresql)"
    return program

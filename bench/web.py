"""Measure a real `muster web`: lists of many sessions, and live changes for many subscribers.

    .venv/bin/python bench/web.py [--sessions 10000] [--ended 0] [--listeners 200] [--rate 50] [--seconds 6]
                                  [--runs 5] [--only list|live|pages|queue] [--database URL|postgresql] [--json]

The server is a process of its own on a database that this program fills: SQLite, unless `--database` names an empty
PostgreSQL database, or is `postgresql`: then this program starts a PostgreSQL of its own for as long as it runs. The
kinds of request, and of subscriber, take turns in each run, so that the machine's noise falls on all of them.

- list: milliseconds until the whole answer has arrived, over one connection; the median of the runs' medians, and the
  worst of their 95th percentiles; of CPU the mean of a request.
- live: subscribers while another process changes sessions through the store. Milliseconds from the change's own time,
  which is before its commit, to its arrival. Lost: changes that a subscriber should have received and did not. First
  page: as for `list`, meanwhile.
- pages: as many open pages of the list of sessions, which refresh themselves as a browser does, while the same
  changes are made, as if each page showed each of them. Milliseconds of a refresh.
- queue: the queue page as the first request of a new server, of an administrator who signed in before that, and its
  refresh. Four fifths of the sessions wait. Milliseconds until the page has arrived; CPU of the server for it; CPU of
  the server's start, until it listens.

CPU is that of all processes of the server in seconds per second, memory the sum of what they hold for themselves.

Server, writer, subscribers and the client that requests pages share this machine's cores.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support.web_load import Received, Refreshed, keep_open, listen, write
from bench.support.web_server import USERS, Client, Prepared, Served, prepared, served
from muster.core.model.session import SessionState
from muster.service.scheduler.compiled_code import compile_placement
from muster.store.store import Store
from tests.contract.postgresql_server import postgresql_server

REQUESTS = 20
SPAWN = multiprocessing.get_context("spawn")
API = "/api/v1/sessions?"
FIRST_PAGE = API + "limit=100"
# By name: the kind of caller, and the path of the request.
LISTS = {
    "API, first page": ("admin", FIRST_PAGE),
    "API, a user's first page": ("user", FIRST_PAGE),
    "API, by name": ("admin", API + "limit=100&sort=name"),
    "API, by state": ("admin", API + "limit=100&sort=-state"),
    "API, those that run": ("admin", API + "limit=100&state=RUNNING"),
    "API, of one owner": ("admin", API + "limit=100&owner=user-3"),
    "API, by part of a name": ("admin", API + "limit=100&name_contains=-77"),
    "API, of a project, by owner": ("admin", API + "limit=100&project=project-1&sort=owner"),
    "page, first": ("admin in a browser", "/sessions"),
    "page, a user's first": ("user in a browser", "/sessions"),
    "page, by name": ("admin in a browser", "/sessions?sort=name"),
    "page, those that run": ("admin in a browser", "/sessions?show=RUNNING"),
    "page, of one owner": ("admin in a browser", "/sessions?owner=user-3"),
    "page, by part of a name": ("admin in a browser", "/sessions?name=-77"),
    "page, its live part": ("admin's live part", "/sessions"),
}


def measured_lists(server: Served, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    client = Client(server.url)
    headers_of = {
        "admin": server.admin,
        "user": server.users[3],
        "admin in a browser": server.admin_browser,
        "user in a browser": server.user_browsers[3],
        "admin's live part": {**server.admin_browser, "HX-Request": "true"},
    }
    medians: dict[str, list[float]] = {name: [] for name in LISTS}
    late: dict[str, list[float]] = {name: [] for name in LISTS}
    used: dict[str, list[float]] = {name: [] for name in LISTS}
    for number in range(given.runs):
        for name, (user, path) in LISTS.items():
            client.milliseconds(path, headers_of[user])
            cpu = server.cpu_s()
            times = [client.milliseconds(path, headers_of[user]) for _ in range(REQUESTS)]
            used[name].append((server.cpu_s() - cpu) * 1000 / REQUESTS)
            medians[name].append(statistics.median(times))
            late[name].append(percentile(times, 95))
        print(f"lists: run {number + 1} of {given.runs}", file=sys.stderr)
    return {
        name: {"median_ms": statistics.median(medians[name]), "p95_ms": max(late[name])}
        | {"least_ms": min(medians[name]), "most_ms": max(medians[name]), "cpu_ms": statistics.median(used[name])}
        for name in LISTS
    }


def measured_live(
    server: Served,
    headers: Sequence[Mapping[str, str]],
    path: str,
    sees: Callable[[int, str], bool],
    given: argparse.Namespace,
) -> dict[str, float]:
    """Measure one run. `sees`: whether a subscriber, by its number, should receive an owner's changes."""
    store = Store(server.database)
    pending = store.search(states=[SessionState.PENDING])[: int(given.rate * 2)]
    owners = {session.id: session.owner for session in pending}
    ours, theirs = SPAWN.Pipe()
    listeners = SPAWN.Process(target=listen, args=(server.url, path, headers, theirs))
    listeners.start()
    theirs.close()  # or its end would not be noticed
    ours.recv()
    before = store.last_event()
    meanwhile = _while_written(server, list(owners), given)
    time.sleep(2.0)  # for changes on their way; later ones count as lost
    ours.send("stop")
    received: list[Received] = ours.recv()
    listeners.join()
    changes = store.changes.after(before, 1 << 20)
    store.close()
    expected = [[change for change in changes if sees(n, owners[change.session_id])] for n in range(len(headers))]
    lost = sum(change.id not in note.times for note, mine in zip(received, expected, strict=True) for change in mine)
    late = [
        (note.times[change.id] - change.at) * 1000
        for note, mine in zip(received, expected, strict=True)
        for change in mine
        if change.id in note.times
    ]
    first, last = changes[0].at, changes[-1].at
    return {
        "changes_per_s": (len(changes) - 1) / (last - first),
        "received": len(late),
        "median_ms": statistics.median(late),
        "p95_ms": percentile(late, 95),
        "worst_ms": max(late),
        "lost": lost,
        "twice": sum(note.twice for note in received),
        "cut_off": sum(note.cut_off for note in received),
        "mib_per_s": sum(note.received_bytes for note in received) / (1 << 20) / given.seconds,
        **meanwhile,
    }


def measured_pages(server: Served, headers: Sequence[Mapping[str, str]], given: argparse.Namespace) -> dict[str, float]:
    """Measure one run of open pages."""
    store = Store(server.database)
    pending = store.search(states=[SessionState.PENDING])[: int(given.rate * 2)]
    store.close()
    ours, theirs = SPAWN.Pipe()
    readers = SPAWN.Process(target=keep_open, args=(server.url, "/sessions", headers, theirs))
    readers.start()
    theirs.close()
    ours.recv()
    meanwhile = _while_written(server, [session.id for session in pending], given)
    ours.send("stop")
    refreshed: list[Refreshed | str] = ours.recv()
    readers.join()
    took = [1000 * took for one in refreshed if isinstance(one, Refreshed) for took in one.took_s]
    if not took or isinstance(refreshed[0], str):
        raise SystemExit(f"the pages failed: {refreshed[0]}")
    return {
        "refreshes_per_s": len(took) / given.seconds,
        "median_ms": statistics.median(took),
        "p95_ms": percentile(took, 95),
        "worst_ms": max(took),
        **meanwhile,
    }


def _while_written(server: Served, session_ids: list[str], given: argparse.Namespace) -> dict[str, float]:
    """Change sessions for `--seconds`; return the server's CPU meanwhile, its memory and its first page's time."""
    writer = SPAWN.Process(target=write, args=(server.database, session_ids, given.rate, given.seconds))
    client, pages = Client(server.url), []
    began, cpu = time.monotonic(), server.cpu_s()
    writer.start()
    while writer.is_alive():
        pages.append(client.milliseconds(FIRST_PAGE, server.admin))
        time.sleep(0.1)
    share = (server.cpu_s() - cpu) / (time.monotonic() - began)
    writer.join()
    if writer.exitcode:
        raise SystemExit("the writer failed")
    return {"server_cpu": share, "memory_mib": server.memory_mib(), "first_page_ms": statistics.median(pages)}


def percentile(values: Sequence[float], which: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[which - 1]


def runs_of_live(server: Served, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    count = given.listeners
    everything = lambda _n, _owner: True  # noqa: E731 - beside the other one
    own = lambda n, owner: owner == f"user-{n % USERS}"  # noqa: E731
    kinds = {
        "/api/v1/events, users": ([server.users[n % USERS] for n in range(count)], "/api/v1/events", own),
        "/api/v1/events, administrators": ([server.admin] * count, "/api/v1/events", everything),
        "/live, users": ([server.user_browsers[n % USERS] for n in range(count)], "/live", own),
        "/live, administrators": ([server.admin_browser] * count, "/live", everything),
    }
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for number in range(given.runs):
        for name, (headers, path, sees) in kinds.items():
            figures[name].append(measured_live(server, headers, path, sees, given))
        print(f"live: run {number + 1} of {given.runs}", file=sys.stderr)
    return {name: _of_runs(of_one) for name, of_one in figures.items()}


def runs_of_pages(server: Served, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    kinds = {
        "users": [server.user_browsers[n % USERS] for n in range(given.listeners)],
        "administrators": [server.admin_browser] * given.listeners,
    }
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for number in range(given.runs):
        for name, headers in kinds.items():
            figures[name].append(measured_pages(server, headers, given))
        print(f"pages: run {number + 1} of {given.runs}", file=sys.stderr)
    return {name: _of_runs(of_one) for name, of_one in figures.items()}


def _of_runs(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the medians over the runs, the worst of worst values, and the sum of counts."""
    how = {"worst_ms": max, "received": sum, "lost": sum, "twice": sum, "cut_off": sum}
    return {name: how.get(name, statistics.median)([run[name] for run in figures]) for name in figures[0]}


MEASURED = {"list": measured_lists, "live": runs_of_live, "pages": runs_of_pages}


def measured_queue(ready: Prepared, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure the queue page of a new server in each run, from the kept sign-in of a first one.

    The scheduler's code is there, as after a site's first daemon.
    """
    compile_placement()
    with served(ready) as before:
        browsers = [before.admin_browser]
    figures: dict[str, list[dict[str, float]]] = {"first page": [], "its refresh": []}
    for number in range(given.runs):
        with served(ready, browsers) as server:
            began = server.cpu_s()
            for name, headers in zip(figures, ({}, {"HX-Request": "true"}), strict=True):
                cpu = server.cpu_s()
                took = Client(server.url).milliseconds("/queue", {**server.admin_browser, **headers})
                used = (server.cpu_s() - cpu) * 1000
                figures[name].append(
                    {"median_ms": took, "worst_ms": took, "cpu_ms": used, "start_cpu_ms": began * 1000}
                )
        print(f"queue: run {number + 1} of {given.runs}", file=sys.stderr)
    return {name: _of_runs(of_one) for name, of_one in figures.items()}


@contextmanager
def database_of(given: argparse.Namespace) -> Iterator[str | None]:
    """Yield the database's URL; None for an SQLite file of the server's own."""
    if given.database == "postgresql":
        with postgresql_server() as running:
            yield running.url(running.new_database())
    else:
        yield given.database


def table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    print(f"\n{title}")
    columns = list(next(iter(rows.values())))
    widths = [max(len(column), 9) for column in columns]
    first = max(map(len, rows))
    print(" " * first, *(f"{column:>{width}}" for column, width in zip(columns, widths, strict=True)), sep="  ")
    for name, row in rows.items():
        cells = (f"{row[column]:>{width}.6g}" for column, width in zip(columns, widths, strict=True))
        print(f"{name:<{first}}", *cells, sep="  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--ended", type=int, default=0)
    parser.add_argument("--listeners", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=[*MEASURED, "queue"])
    parser.add_argument("--database", metavar="URL|postgresql")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "arguments": vars(given),
    }
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory, database_of(given) as database:
        ready = prepared(Path(directory), database, given.sessions, given.ended)
        if given.only != "queue":
            with served(ready) as server:
                for name, measured in MEASURED.items():
                    if given.only in {None, name}:
                        result[name] = measured(server, given)
        if given.only in {None, "queue"}:
            result["queue"] = measured_queue(ready, given)
    if given.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['machine']}; medians of {given.runs} runs")
    if "list" in result:
        table(f"{given.sessions} sessions, and {given.ended} that ended: milliseconds", result["list"])
    if "live" in result:
        table(f"{given.listeners} listeners", result["live"])
    if "pages" in result:
        table(f"{given.listeners} open pages", result["pages"])
    if "queue" in result:
        table(f"the queue page of a new server; {given.sessions} sessions", result["queue"])


if __name__ == "__main__":
    main()

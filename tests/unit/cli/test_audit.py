"""Lines of commands in the audit log: every change with its user, and no queries."""

import json
import os
import resource
import stat
import threading

import pytest

from muster.service.audit import AuditLog
from muster.settings import load_settings
from tests.command_line import muster, submitted
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW


@pytest.fixture
def records(state_dir):
    def read():
        path = state_dir / "audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


def test_a_change_is_recorded_with_user_source_sessions_and_result(records, state_dir):
    session = submitted("--name", "train", "--owner", "eve")
    muster("terminate", "train")
    first, second = records()
    assert first.pop("at").endswith("+00:00")
    assert first == {
        "user": "ada",
        "token": None,
        "source": "command line",
        "from": f"uid {os.getuid()}",
        "method": "COMMAND",
        "path": "muster submit",
        "arguments": {},
        "sessions": [session["id"]],
        "owner": "eve",
        "status": 0,
    }
    assert (second["path"], second["arguments"]) == ("muster terminate", {"references": ["train"]})
    assert second["sessions"] == [session["id"]]
    assert stat.S_IMODE((state_dir / "audit.log").stat().st_mode) == 0o600


def test_a_refused_command_is_recorded_with_its_exit_code(records):
    submitted("--name", "train")
    assert muster("terminate", "nosuch").code == 2
    assert muster("restart", "train").code == 1
    assert [(record["path"], record["status"]) for record in records()[1:]] == [
        ("muster terminate", 2),
        ("muster restart", 1),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        *(("agent", "drain", "a1"), ("agent", "resume", "a1"), ("reservation", "rm", "nosuch")),
        *(("token", "create", "t", "--user", "ada"), ("token", "revoke", "nosuch"), ("secret", "rm", "nosuch")),
        *(("hold", "train"), ("release", "train"), ("rename", "train", "b"), ("cancel", "train"), ("ssh", "train")),
        ("update", "train", "--env", "PASSWORD=hunter2", "--", "login", "hunter2"),
        *(("exec", "train", "--", "login", "hunter2"), ("folder", "rm", "nosuch"), ("images", "rm", "a:b")),
    ],
)
def test_every_command_that_changes_something_is_recorded_once_without_what_may_be_secret(records, store, arguments):
    store.agents.save([make_agent("a1")])
    submitted("--name", "train")
    answer = muster(*arguments)
    (record,) = records()[1:]
    assert record["path"].split()[1] == arguments[0]
    assert (record["status"] == 0) == (answer.code == 0), (record, answer)
    assert "hunter2" not in json.dumps(record)


def test_a_query_leaves_no_record(records, store):
    store.agents.save([make_agent("a1")])
    submitted("--name", "train")
    for arguments in (
        *(("ls",), ("show", "train"), ("why", "train"), ("queue",), ("agents",), ("agent", "show", "a1"), ("images",)),
        *(("submit", "--dry-run"), ("agent", "drain", "a1", "--plan"), ("token", "ls"), ("secret", "ls")),
    ):
        assert muster(*arguments).code in {0, 1, 2}
    assert len(records()) == 1


def test_a_command_that_waits_is_recorded_when_it_acts(records):
    waited = muster("submit", "--name", "a", "--wait", "--wait-timeout", "0.01")
    assert waited.code == 1
    (record,) = records()
    assert (record["status"], len(record["sessions"])) == (0, 1)


def test_a_drain_that_waits_is_recorded_when_the_agent_is_drained(records, store):
    store.agents.save([make_agent("a1")])
    store.add([placed_on(make_session(1), "a1")])
    assert muster("agent", "drain", "a1", "--wait", "--timeout", "0").code == 1
    (record,) = records()
    assert (record["path"], record["status"], record["sessions"]) == ("muster agent drain", 0, [])


def test_a_log_that_cannot_be_written_stops_nobody_and_is_said(state_dir):
    (state_dir / "audit.log").mkdir()
    answer = muster("submit", "--name", "a")
    assert answer.code == 0
    assert muster("ls", "--json").json[0]["name"] == "a"


def test_a_record_for_which_the_disk_has_no_room_spoils_no_other(records, state_dir, caplog):
    log = AuditLog(load_settings())
    log.write({"user": "ada"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((state_dir / "audit.log").stat().st_size + 10, limits[1]))
        log.write({"user": "eve"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.write({"user": "bob"})
    assert [record["user"] for record in records()] == ["ada", "bob"]
    assert '"user": "eve"' in caplog.text


def test_writers_beside_each_other_lose_no_line_when_the_log_is_rotated(state_dir):
    settings = load_settings()

    def write(name):
        log = AuditLog(settings, most_bytes=3000)
        for number in range(50):
            log.write({"user": name, "number": number})

    threads = [threading.Thread(target=write, args=(name,)) for name in ("ada", "eve", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = sorted(state_dir.glob("audit.log*"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert len(files) > 2
    assert sorted((line["user"], line["number"]) for line in lines) == sorted(
        (name, number) for name in ("ada", "eve", "bob") for number in range(50)
    )


def test_what_was_in_a_reservation_is_recorded_when_it_is_made_and_taken_back(records):
    muster("reservation", "create", "course", "--end", "+2h", "--user", "eve", "--reason", "a course")
    made = records()[-1]
    assert muster("reservation", "rm", "course").code == 0
    removed = records()[-1]
    assert (made["after"]["users"], made["after"]["reason"]) == (["eve"], "a course")
    assert removed["before"] == made["after"]


def test_the_removal_of_unknown_sessions_is_wanted_from_then_on_and_recorded(records, store):
    assert store.snapshot(NOW).begins_at > 1
    # There is no inventory.
    muster("pass", "--remove-unknown")
    assert store.snapshot(NOW).begins_at == 1
    assert [(record["path"], record["status"]) for record in records()] == [("muster pass", 0)]
    muster("pass")
    assert len(records()) == 1

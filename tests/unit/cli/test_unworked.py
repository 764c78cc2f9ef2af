"""What commands say when nobody works the queue, and that forecasts promise nothing then."""

import time
from dataclasses import replace

import pytest

from muster.cli.doctor import _worked
from muster.core.model.heartbeat import Heartbeat, Worker
from muster.settings import load_settings
from muster.store.database.lock import queue_lock
from tests.command_line import muster, write_settings
from tests.strategies.agents import make_agent

LINE = "muster: warning: nobody has worked the queue for 17m"
LISTING = (
    ("ls",),
    ("agents",),
    ("queue",),
    ("show", "train"),
    ("why", "train"),
    ("hold", "train"),
    ("agent", "show", "a1"),
)


@pytest.fixture
def cluster(store, tmp_path):
    """Return a queue that the daemon worked a moment ago, with one session."""
    write_settings(tmp_path, {})
    store.agents.save([replace(make_agent("a1", cpus=4), observed_at=time.time())])
    beat(store, 0)
    assert muster("submit", "--name", "train").code == 0
    write_settings(tmp_path, {"unworked_after_s": 180})
    return store


def beat(store, ago_s, worker=Worker.DAEMON):
    store.heartbeats.save(Heartbeat(time.time() - ago_s, worker, "ctl-1", 7))


@pytest.mark.parametrize("arguments", LISTING)
def test_a_command_warns_once_and_its_output_stays_as_it_is(cluster, arguments):
    worked = muster(*arguments)
    assert (worked.code, worked.errors) == (0, [])
    beat(cluster, 1025)
    result = muster(*arguments)
    assert result.code == 0
    assert [line[: len(LINE)] for line in result.errors] == [LINE]


def test_the_output_for_programs_is_not_disturbed(cluster):
    beat(cluster, 1025)
    result = muster("ls", "--json")
    assert [session["name"] for session in result.json] == ["train"]
    assert result.errors[0].startswith(LINE)


def test_a_queue_in_which_nothing_waits_or_runs_needs_nobody(cluster):
    beat(cluster, 1025)
    muster("cancel", "train")
    assert muster("ls").errors == []


def test_a_queue_that_was_just_begun_is_not_called_abandoned(store, tmp_path):
    write_settings(tmp_path, {"unworked_after_s": 180})
    assert store.heartbeats.last() is None
    assert muster("submit", "--name", "first").errors == []
    assert muster("ls").errors == []


def test_a_waiting_command_warns_before_it_waits(cluster):
    beat(cluster, 1025)
    result = muster("submit", "--name", "b", "--wait", "--wait-timeout", "0.01")
    assert result.code == 1
    assert result.errors[0].startswith(LINE)
    assert sum(line.startswith(LINE) for line in result.errors) == 1


def test_a_forecast_says_that_nothing_starts_while_nobody_works_the_queue(cluster):
    muster("cancel", "train")
    assert muster("submit", "--dry-run", "--cpu", "1", "--mem", "1G").code == 0
    beat(cluster, 1025)
    result = muster("submit", "--dry-run", "--cpu", "1", "--mem", "1G")
    assert result.code == 1
    assert "would start once somebody works the queue" in result.out
    assert result.errors[0].startswith(LINE)
    (item,) = muster("submit", "--dry-run", "--json", "--cpu", "1", "--mem", "1G").json
    assert item["starts_now"] is False
    assert item["kernels"]


def test_the_queue_promises_no_start_while_nobody_works_it(cluster):
    assert "nobody works" not in muster("queue").out
    beat(cluster, 1025)
    assert muster("queue").out.splitlines()[1].endswith("unknown, since nobody works the queue")


def test_an_agent_that_was_not_observed_lately_is_stale(cluster):
    assert muster("agents", "--json").json[0]["state"] == "ALIVE"
    cluster.agents.save([replace(make_agent("a1"), observed_at=time.time() - 1020)])
    assert muster("agents", "--json").json[0]["state"] == "STALE"
    assert muster("agents").out.splitlines()[1].split()[2] == "STALE"
    assert "STALE" in muster("agent", "show", "a1").out


def test_the_doctor_tells_a_dead_daemon_from_one_that_hangs_and_from_passes(cluster):
    settings = load_settings()
    assert not _worked(settings).ok  # the daemon beat a moment ago, and has let go of the lock since
    with queue_lock(settings.database_url, settings.state_dir, wait=False):
        assert _worked(settings).ok
        beat(cluster, 1025)
        hung = _worked(settings)
        assert not hung.ok
        assert "locked, but not worked: last 17m5s ago by muster daemon on ctl-1, process 7" in hung.found
    assert "nobody works the queue; last worked: 17m5s ago" in _worked(settings).found
    beat(cluster, 60, Worker.ONCE)
    assert _worked(settings).ok
    beat(cluster, 1025, Worker.ONCE)
    assert not _worked(settings).ok


def test_a_pass_beside_a_worker_is_requested_of_that(cluster):
    settings = load_settings()
    with queue_lock(settings.database_url, settings.state_dir, wait=False):
        before = cluster.queue.requested_pass()
        answer, as_data = muster("pass"), muster("pass", "--json")
        assert (answer.code, answer.errors, as_data.code, as_data.json) == (0, [], 0, {"requested": True})
        assert answer.out == "requested a pass of what works this queue; with --wait, this ends when that has\n"
        assert cluster.queue.requested_pass() == before + 2

"""What sessions use: at their end, at this moment, added up; and what becomes of those that nobody uses."""

import csv
import functools
import io

import pytest

from tests.control_node import SMALL, ControlNode
from tests.waiting import eventually

IDLE = {
    "grace": "1s",
    "warn_before": "1h",
    "cpu_percent": 20,
    "network_bytes_per_s": 10000,
    "max_lifetime": "2h",
    "resource_groups": {"strict": {"timeout": "1h"}},
}
BURN = "while :; do :; done"
FILL = "x=$(head -c 20000000 /dev/zero | tr '\\0' x)"
COUNT = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; echo ${#x}"


@pytest.fixture(scope="module")
def watching(new_node) -> ControlNode:
    """Return a control node that observes every second, so that changes show soon."""
    made = new_node(observe_interval_s=1, idle=IDLE)
    made.start_daemon()
    return made


@pytest.fixture(scope="module")
def burner(watching) -> str:
    """Return a session that is always busy, with a short idle timeout and a time limit that is near."""
    return watching.start("--project", "vision", "--idle-timeout", "8s", "--time-limit", "3602s", "-c", BURN)


@pytest.fixture(scope="module")
def ended(watching) -> dict:
    """Return a session whose command used CPU and memory, and ended between two observations."""
    name = watching.submit(*SMALL[2:], "--cpu", "1", "--project", "audio", "-c", f"{FILL}; {COUNT}")
    return watching.reaches(name, "TERMINATED")


def test_a_commands_usage_is_recorded_at_its_end(ended):
    (use,) = ended["use"]
    assert (ended["exit_code"], use["kernel"], use["gpu_seconds"]) == (0, "main1", None)
    assert use["cpu_seconds"] > 0.05
    assert 20_000_000 < use["mem_peak_bytes"] <= 64 << 20
    assert ended["started_at"] < ended["ended_at"]


def test_show_prints_what_each_kernel_used(watching, ended):
    shown = watching.run("show", ended["name"]).out
    assert "CPU TIME" in shown
    assert "PEAK MEMORY" in shown


def test_top_shows_what_runs_at_this_moment(watching, burner):
    (now,) = watching.run("top", burner, "--once", "--json").json()
    assert (now["session"], now["kernel"], now["agent"], now["problem"]) == (burner, "main1", "localhost", None)
    assert now["cpu_cores"] > 0
    assert 0 < now["mem_bytes"] <= now["mem_bytes_allocated"] == 64 << 20
    assert now["net_tx_bytes_per_s"] is not None
    assert burner in watching.run("top", "--once").out


def test_top_takes_only_what_runs(watching, ended):
    refused = watching.run("top", ended["name"], check=False)
    assert refused.code == 1
    assert "only a RUNNING one is in use" in refused.err


def test_a_session_that_nobody_uses_is_warned_of_and_ended_and_one_in_use_goes_on(watching, burner):
    name = watching.start("--idle-timeout", "8s", "--cluster-size", "2")
    idle = watching.reaches(name, "TERMINATED")
    story = [line["reason"] for line in idle["story"]]
    warning, end = [reason for reason in story if reason.startswith("idle for")][:2]
    assert "unless it is used" in warning
    assert "CPU" in end
    assert "network" in end
    assert idle["result"] == "SUCCESS"
    assert watching.show(burner)["state"] == "RUNNING"


def test_a_warning_is_read_in_the_kernel_and_at_a_login(watching, burner):
    look = functools.partial(watching.exec, burner, "cat", "/run/muster/notice", check=False)
    read = eventually(look, lambda done: done.code == 0)
    notice = watching.show(burner)["notice"]
    assert f"session {burner}: its time limit of 1h2s is reached at" in notice
    assert read.out == notice
    assert notice in watching.run("ssh", burner, "true").err
    assert any(line["reason"] in notice for line in watching.show(burner)["story"])


@pytest.mark.usefixtures("burner")
def test_the_report_adds_up_what_was_given_and_used(watching, ended):
    by_project = watching.run("report", "--by", "project", "--json").json()
    lines = {line["project"]: line for line in by_project["lines"]}
    assert lines["audio"]["sessions"] == lines["audio"]["waits"] == 1
    assert lines["audio"]["cpu_hours_used"] == pytest.approx(ended["use"][0]["cpu_seconds"] / 3600, abs=1e-5)
    assert lines["vision"]["cpu_hours_allocated"] > 0
    rows = list(csv.DictReader(io.StringIO(watching.run("report", "--by", "project,session", "--csv").out)))
    assert {row["project"] for row in rows} >= {"audio", "vision"}
    total = watching.run("report", "--by", "project", "--project", "audio").out.splitlines()
    assert total[0].startswith("PROJECT")
    assert len(total) == 2


def test_the_report_by_session_has_an_array_in_one_line_and_shows_short_jobs_as_more_than_nothing(watching, ended):
    watching.run("submit", *SMALL, "--name", "sweep", "--array", "0-1", "--wait", "-c", COUNT)
    lines = watching.run("report", "--by", "session").out.splitlines()
    used = lines[0].index("CPU H USED")
    by_name = {line.split()[0]: line for line in lines[1:]}
    assert by_name["sweep"].split()[2] == "2"
    assert all(float(by_name[name][used:].split()[0]) > 0 for name in ("sweep", ended["name"]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "--by", "colour"), "--by: there is no key 'colour'; use user, project, day, session"),
        (("report", "--since", "soon"), "--since: 'soon' is no point in time; write 2026-11-22"),
        (("report", "--until", "2001-02-01"), "--until: it is not after --since"),
        (("report", "--csv", "--json"), "--csv: --json is given as well; give one of them"),
        (
            ("submit", "--time-limit", "3h"),
            "time_limit: 3h is longer than any session of this site lives, 2h; ask for 2h",
        ),
        (
            ("submit", "-g", "strict", "--idle-timeout", "2h"),
            "idle_timeout: 2h is longer than this site allows, 1h; ask for 1h or less",
        ),
        (
            ("submit", "-g", "strict", "--no-idle-check"),
            "no_idle_check: this site ends every session that is idle",
        ),
        (("submit", "--idle-timeout", "1h", "--no-idle-check"), "no_idle_check: idle_timeout is given as well"),
    ],
)
def test_a_wrong_wish_gets_one_line(watching, arguments, said):
    refused = watching.run(*arguments, check=False)
    assert refused.code == 2
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1


def test_a_session_lives_no_longer_than_the_site_says(ended):
    assert ended["spec"]["time_limit"] == "7200s"

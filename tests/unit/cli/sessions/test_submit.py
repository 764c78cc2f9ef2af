"""`muster submit`: flags, files, job scripts."""

import json
import socket
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from muster.core.agents.agent import AgentState
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Result, SessionState
from muster.store.database.lock import queue_lock
from muster.store.store import Store
from tests.command_line import muster, nothing_queued, submitted, write_settings
from tests.strategies.agents import make_agent, reporting
from tests.waiting import eventually


def test_submit_takes_every_flag():
    session = submitted(
        *("--name", "lab", "--image", "debian:12", "--cluster-size", "4", "--cluster-mode", "multi-node"),
        *("--role", "ps:2,cpu=1", "--cpu", "2", "--mem", "4G", "--shm", "1G", "--fgpu", "0.5", "--fgpu-limit", "0.8"),
        *("-e", "A=1", "-e", "B=2"),
        *("-v", "data:/data:ro", "--priority", "80", "--time-limit", "2h", "--resource-group", "gpu"),
        *("--type", "batch", "--command", "python train.py", "--on", "all", "--requeue"),
        *("--project", "vision", "--begin", "2026-11-22T08:00+01:00", "--hold", "--preemptible"),
        *("--gpu-model", "A100,H100", "-l", "disk=ssd", "-l", "site/zone=a", "-w", "a1,a2", "-w", "a3", "-x", "a4"),
        *("--topology", "one-rack"),
    )  # fmt: skip
    assert (session["name"], session["owner"], session["state"], session["type"]) == ("lab", "ada", "PENDING", "batch")
    assert [kernel["name"] for kernel in session["kernels"]] == ["main1", "ps1", "ps2", "sub1"]
    spec = session["spec"]
    assert (spec["cpu"], spec["mem"], spec["shm"], spec["fgpu"]) == ("2000m", 4 << 30, 1 << 30, "500m")
    assert (spec["fgpu_limit"], spec["best_effort"]) == ("800m", False)
    assert spec["env"] == {"A": "1", "B": "2"}
    assert spec["mounts"] == [{"folder": "data", "target": "/data", "read_only": True}]
    assert (spec["priority"], spec["time_limit"], spec["resource_group"]) == (80, "7200s", "gpu")
    assert (spec["command"], spec["run_on"], spec["image"]) == ("python train.py", "all", "debian:12")
    assert (spec["requeue"], spec["hold"], spec["preemptible"]) == (True, True, True)
    assert (session["project"], session["held_by"], spec["topology"]) == ("vision", "ada", "one-rack")
    assert spec["begin"] == datetime(2026, 11, 22, 7, tzinfo=UTC).timestamp()
    assert (spec["gpu_models"], spec["labels"]) == (["A100", "H100"], {"disk": "ssd", "site/zone": "a"})
    assert (spec["agents"], spec["exclude_agents"]) == (["a1", "a2", "a3"], ["a4"])


def test_submit_without_anything_is_a_session_of_one():
    session = submitted()
    assert (session["cluster_size"], session["type"]) == (1, "interactive")
    assert session["name"].startswith("session-")
    assert session["id"] == session["kernels"][0]["id"]


def test_submit_prints_name_and_id_or_with_quiet_the_id_alone():
    out = muster("submit", "--name", "a").out
    assert out == f"Submitted a {muster('show', 'a', '--json').json['id']}\n"
    identity = muster("submit", "-q").out.strip()
    assert muster("show", identity, "--json").json["id"] == identity


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["python", "train.py"], "python train.py"),
        (["sh", "-c", "echo $HOME; exit 3"], "sh -c 'echo $HOME; exit 3'"),
        (["echo one; echo two"], "echo one; echo two"),
        (["prog", "--name", "x", "--", "-q"], "prog --name x -- -q"),
    ],
)
def test_the_words_after_two_dashes_are_the_command(words, command):
    session = submitted("--cpu", "2", "--", *words)
    assert (session["spec"]["command"], session["type"]) == (command, "batch")


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_submit_reads_a_session_file_and_flags_win_over_it(tmp_path, form):
    values = {"name": "filed", "cluster_size": 3, "env": {"A": 1}, "priority": 20, "distributed_env": False}
    path = tmp_path / "session"
    path.write_text(yaml.safe_dump(values) if form == "yaml" else json.dumps(values), encoding="utf-8")
    session = submitted("-f", str(path), "--priority", "80")
    assert (session["name"], session["cluster_size"], session["spec"]["priority"]) == ("filed", 3, 80)
    assert session["spec"]["distributed_env"] is False


def test_a_session_that_was_shown_can_be_submitted_again(tmp_path):
    first = submitted("--cluster-size", "2", "--name", "one", "--mem", "2G", "--", "true")
    path = tmp_path / "again.json"
    path.write_text(json.dumps(first["spec"]), encoding="utf-8")
    second = submitted("-f", str(path), "--name", "two")
    assert {**first["spec"], "name": ""} == {**second["spec"], "name": "", "ssh_keys": first["spec"]["ssh_keys"]}


def test_submit_reads_flags_from_the_lines_of_a_job_script(script):
    path = script(
        "#!/bin/sh\n#MUSTER --cluster-size 3 --cpu 2\n# a remark\n#MUSTER -e 'A=x y'\necho\n#MUSTER --gpu 9\n"
    )
    session = submitted(path)
    assert (session["name"], session["cluster_size"], session["type"]) == ("job", 3, "batch")
    assert (session["spec"]["cpu"], session["spec"]["env"], session["spec"]["gpu"]) == ("2000m", {"A": "x y"}, 0)
    assert session["spec"]["script"] == Path(path).read_text(encoding="utf-8")


def test_flags_win_over_script_lines_and_script_lines_over_the_file(tmp_path, script):
    filed = tmp_path / "session.yml"
    filed.write_text("priority: 10\ncpu: 1\nmem: 1G\n", encoding="utf-8")
    path = script("#!/bin/sh\n#MUSTER --priority 20 --cpu 2\ntrue\n")
    spec = submitted(path, "-f", str(filed), "--priority", "30")["spec"]
    assert (spec["priority"], spec["cpu"], spec["mem"]) == (30, "2000m", 1 << 30)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--cpu 2 --count 3", "--count"),
        ("--cpu 2 --owner bob", "--owner"),
        ("--wait --cpu 2", "--wait"),
        ("--cpu 2 other.sh", "other.sh"),
        ("--cpu 2 -- true", "--"),
    ],
)
def test_a_script_line_with_what_is_no_flag_of_the_spec_is_refused(script, line, word):
    path = script(f"#!/bin/sh\n#MUSTER {line}\ntrue\n")
    answer = muster("submit", path)
    said = f"muster: {path}: #MUSTER {word} is no flag of the session spec; write it behind `muster submit` itself"
    assert (answer.code, answer.errors) == (2, [said])
    assert nothing_queued()


def test_variables_of_the_file_stay_where_a_flag_names_others(tmp_path, script):
    filed = tmp_path / "session.yml"
    filed.write_text("env: {A: file, B: file, C: 1}\n", encoding="utf-8")
    path = script("#!/bin/sh\n#MUSTER --env B=script --env D=script\ntrue\n")
    spec = submitted(path, "-f", str(filed), "--env", "D=flag")["spec"]
    assert spec["env"] == {"A": "file", "B": "script", "C": "1", "D": "flag"}


def test_more_kernels_at_once_than_the_queue_takes_are_refused():
    answer = muster("submit", "--count", "10000", "--cluster-size", "1000")
    assert answer.code == 2
    assert answer.errors == [
        "muster: count: 10000 sessions of 1000 containers are too many at once; submit 100000 containers at the most"
    ]


def test_count_queues_numbered_sessions_or_none():
    assert [s["name"] for s in muster("submit", "--count", "3", "--name", "n", "--json").json] == ["n-1", "n-2", "n-3"]
    assert len(muster("submit", "--count", "2", "-q").out.split()) == 2
    answer = muster("submit", "--count", "4", "--name", "n")
    assert answer.code == 2
    assert len(muster("ls", "--json").json) == 5


def test_a_begin_is_seen_from_now():
    before = time.time()
    begin = submitted("--begin", "now+2h")["spec"]["begin"]
    assert before + 7200 <= begin <= time.time() + 7200
    for text in ("23:59", "00:00"):
        assert 0 < submitted("--begin", text)["spec"]["begin"] - before <= 86400 + 3600


def test_labels_of_the_file_stay_where_a_flag_names_others(tmp_path):
    filed = tmp_path / "session.yml"
    filed.write_text("labels: [disk=ssd, room=2]\nbegin: 2026-11-22 08:00:00Z\narray: 5\n", encoding="utf-8")
    spec = submitted("-f", str(filed), "--label", "room=3")["spec"]
    assert (spec["labels"], spec["array"]) == ({"disk": "ssd", "room": "3"}, "5")
    assert spec["begin"] == datetime(2026, 11, 22, 8, tzinfo=UTC).timestamp()


def test_the_public_keys_of_the_user_may_log_in(tmp_path):
    directory = tmp_path / "home" / ".ssh"
    directory.mkdir(parents=True)
    (directory / "id_ed25519.pub").write_text("ssh-ed25519 AAAA me@laptop\n", encoding="utf-8")
    (directory / "id_ed25519").write_text("PRIVATE", encoding="utf-8")
    assert submitted()["spec"]["ssh_keys"][0] == "ssh-ed25519 AAAA me@laptop"
    other = tmp_path / "other.pub"
    other.write_text("ssh-rsa BBBB other\n", encoding="utf-8")
    assert submitted("--ssh-key", str(other))["spec"]["ssh_keys"][0] == "ssh-rsa BBBB other"


def test_an_image_may_be_given_by_its_name_in_the_catalog(tmp_path):
    entry = {"name": "torch", "reference": "registry.example/torch:2", "aliases": ["pytorch"]}
    (tmp_path / "images.yml").write_text(yaml.safe_dump({"images": [entry]}), encoding="utf-8")
    assert submitted("-i", "pytorch")["kernels"][0]["image"] == "registry.example/torch:2"
    assert submitted("-i", "debian:12")["kernels"][0]["image"] == "debian:12"


def test_schema_prints_the_schema_and_queues_nothing():
    assert "cluster_size" in muster("submit", "--schema").json["properties"]
    assert nothing_queued()


def test_a_session_that_never_fits_is_queued_and_said_so(store):
    store.agents.save([make_agent(cpus=4)])
    answer = muster("submit", "--cpu", "5", "--name", "giant")
    assert answer.code == 0
    assert answer.errors[0].startswith("muster: giant can never start: it asks for more")


def test_waiting_ends_when_the_time_to_wait_is_over():
    answer = muster("submit", "--name", "a", "--wait", "--wait-timeout", "0.01")
    assert answer.code == 1
    assert "still waiting for a (PENDING)" in answer.err


@pytest.mark.parametrize(
    ("result", "exit_code", "code"),
    [(Result.SUCCESS, 0, 0), (Result.FAILURE, 3, 3), (Result.FAILURE, 0, 1), (Result.FAILURE, None, 1)],
)
def test_waiting_for_a_session_that_fails_fails_whatever_the_container_ended_with(store, result, exit_code, code):
    """A container that ends with exit code 0 before the command has ended fails its session."""

    def end() -> None:
        session = eventually(store.search)[0]
        at = session.submitted_at
        ending = {"result": result, "exit_code": exit_code}
        for before, after, changes in (
            (SessionState.PENDING, SessionState.RUNNING, {"started_at": at}),
            (SessionState.RUNNING, SessionState.TERMINATED, {"ended_at": at, **ending}),
        ):
            store.apply([Event(session.id, at, before, after, "moves on", changes)])

    ends = threading.Thread(target=end)
    ends.start()
    answer = muster("submit", "--name", "a", "--wait", "--", "true")
    ends.join()
    assert answer.code == code, answer.err


def test_a_time_to_wait_without_a_wait_is_refused():
    answer = muster("submit", "--name", "a", "--wait-timeout", "5")
    assert (answer.code, answer.errors) == (2, ["muster: --wait-timeout: nothing is waited for; give --wait too"])
    assert nothing_queued()


def test_local_rank_is_chosen_by_a_flag(store):
    store.agents.save([make_agent("a1")])
    gang = ("-N", "2", "--cpu", "0.1", "--mem", "64M", "--shm", "16M")
    assert muster("submit", *gang, "--local-rank", "kernel", "--dry-run").code == 0
    assert muster("submit", *gang, "--local-rank", "kernel", "--name", "own").code == 0
    assert muster("submit", *gang, "--name", "counted").code == 0
    specs = {one["name"]: one["spec"]["local_rank"] for one in muster("ls", "--json").json}
    assert specs == {"own": "kernel", "counted": "agent"}
    refused = muster("submit", *gang, "--local-rank", "session")
    assert (refused.code, len(refused.errors)) == (2, 1)
    assert refused.errors == ["muster: local_rank: 'session' is none of the choices; write 'agent' or 'kernel'"]


def test_a_folder_that_no_agent_has_is_refused_also_in_a_dry_run(store):
    has, lacks = make_agent("a1"), make_agent("a2")
    store.agents.save([reporting(has, directories=["datasets"]), reporting(lacks, directories=[])])
    for flags in ([], ["--dry-run"]):
        refused = muster("submit", "-v", "datasets/mnist:/mnist", "-v", "data", "-v", "bob/papers", *flags)
        assert refused.code == 2
        assert refused.errors == [
            (
                "muster: mounts[1].folder: there is no folder 'data'; make it with `muster folder create data`,"
                " or name another; see `muster folder ls`"
            ),
            (
                "muster: mounts[2].folder: there is no folder 'bob/papers'; name another, or make one of your own;"
                " see `muster folder ls`"
            ),
        ]
    assert nothing_queued()
    assert muster("submit", "-v", "datasets", "-x", "a1").code == 2
    assert muster("submit", "-v", "datasets", "-w", "a1").code == 0


@pytest.mark.parametrize("group", ["default", "without agents"])
def test_a_folder_is_not_refused_where_agents_have_not_said_what_they_have(store, tmp_path, group):
    write_settings(tmp_path, {"resource_groups": {"without agents": {}}})
    store.agents.save([reporting(make_agent("a1"), directories=[]), make_agent("a2")])
    assert muster("submit", "-v", "data", "-g", group).code == 0


def test_a_resource_group_that_the_site_does_not_have_is_refused(store, tmp_path):
    assert muster("submit", "-g", "early").code == 0
    store.agents.save([replace(make_agent("a1", resource_group="gpu"), state=AgentState.LOST), make_agent("a2")])
    write_settings(
        tmp_path, {"resource_groups": {"cold": {"backfill": False}}, "limits": {"resource_groups": {"*": {}}}}
    )
    for command in ("submit", "submit --dry-run"):
        done = muster(*command.split(), "-g", "nosuch", "--mem", "3X")
        assert (done.code, done.out) == (2, "")
        assert done.err.splitlines()[-1] == (
            "muster: resource_group: there is no resource group 'nosuch'; write one of cold, default, gpu"
        )
    for group in ("gpu", "cold", "default"):
        assert muster("submit", "-g", group).code == 0
    muster("limit", "set", "resource_group", "spare", "running.gpu=1")
    assert muster("submit", "-g", "spare").code == 0


def test_a_directory_that_was_made_just_now_is_found_by_asking_the_agents_again(store, state_dir):
    agent = reporting(make_agent("a1"), directories=[])
    store.agents.save([agent])
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as loop:
        loop.bind(str(state_dir / "wake.sock"))

        def observe() -> None:
            while loop.recv(100) != b"agents":
                pass
            later = replace(reporting(agent, directories=["fresh"]), observed_at=agent.observed_at + 1)
            Store(f"sqlite:///{state_dir / 'muster.db'}").agents.save([later])

        daemon = threading.Thread(target=observe)
        with queue_lock(f"sqlite:///{state_dir / 'muster.db'}", state_dir, wait=True):
            daemon.start()
            assert muster("submit", "-v", "fresh").code == 0
            daemon.join()


def test_an_agent_that_is_excluded_and_is_not_there_is_a_warning(store):
    """The session would run on the one that was meant."""
    store.agents.save([make_agent("gpu-01"), make_agent("gpu-02")])
    line = "muster: warning: there is no agent 'gpu-1', which is to be excluded; is it misspelt?"
    names = ("--image", "muster/default:latest", "--exclude-agent", "gpu-1", "--exclude-agent", "gpu-02")
    assert muster("submit", *names, "--dry-run").errors == [line]
    done = muster("submit", *names)
    assert (done.code, done.errors) == (0, [line])


def test_an_image_that_nobody_knows_is_a_warning(store):
    store.agents.save([make_agent("a1")])
    line = (
        "muster: warning: image example.org/lab/typo:1: neither the catalog nor an agent has it;"
        " it is pulled from its registry, if that has it"
    )
    tried = muster("submit", "--image", "example.org/lab/typo:1", "--dry-run")
    assert (tried.code, tried.errors) == (0, [line])
    done = muster("submit", "--image", "example.org/lab/typo:1")
    assert (done.code, done.errors) == (0, [line])
    assert muster("submit", "--image", "muster/default:latest").errors == []

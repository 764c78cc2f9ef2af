"""`muster simulate`: files in, figures out, and one line for each thing that is wrong with a file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from muster.core.agents.agent import HAS_LEFT
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import SessionState
from muster.store.store import Store
from tests.command_line import muster, submitted
from tests.strategies.agents import make_agent
from tests.strategies.sessions import placed_on
from tests.strategies.values import NOW

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "pod-0,4000,4096,1,1000,,LS,Running,1000,1100,1000\n"
    "pod-1,1000,8,1,460,V100|A100,BE,Running,1010,1060,\n"
)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, object], str]:
    def write(name: str, content: object) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def cluster(written) -> str:
    return written("cluster.yml", {"agents": [{"count": 2, "cpu": 8, "mem": "32G", "gpus": 2, "units_per_gpu": 1}]})


def simulated(*arguments: str) -> dict:
    answer = muster("simulate", "--json", "--launch-time", "0s", "--pass-interval", "0s", *arguments)
    assert answer.code == 0, answer.err
    return answer.json


def test_a_simulated_cluster_is_defragmented_where_that_is_said(written, cluster):
    again = {"requeue": True, "at": "0s", "duration": "1h", "cpu": 5}
    rest = [{**again, "name": "late", "at": "2m", "cpu": 8, "duration": "1m"}]
    first = [{**again, "name": "long"}, {**again, "name": "short", "at": "1s", "cpu": 3, "duration": "1m"}]
    workload = written("workload.yml", {"sessions": [*first, {**again, "name": "small", "at": "2s", "cpu": 3}, *rest]})
    on, off = (
        simulated("--cluster", cluster, "--workload", workload, "--sessions", flag)
        for flag in ("--defragment", "--no-defragment")
    )
    waited = [next(iter(found.values()))["sessions"][-1]["waited_s"] for found in (on, off)]
    assert waited == [0, 3480]


def test_elastic_sessions_of_a_workload_get_what_there_is(written):
    cluster = written("joined.yml", {"agents": [{"count": 2, "cpu": 8, "mem": "32G", "overlay": True}]})
    gang = {"name": "gang", "at": 0, "duration": "1m", "cpu": 4, "cluster_size": "2-6", "cluster_mode": "multi-node"}
    later = {**gang, "name": "next", "at": "1s", "cluster_size": "1-2"}
    workload = written("workload.yml", {"sessions": [gang, later]})
    (figures,) = simulated("--cluster", cluster, "--workload", workload, "--sessions").values()
    assert [life["waited_s"] for life in figures["sessions"]] == [0, 59]
    assert figures["ended"] == 2


def test_a_workload_file_is_played(written, cluster):
    workload = written(
        "workload.yml",
        {"sessions": [{"name": "train", "at": "1m", "every": "10s", "count": 3, "duration": "2m", "cpu": 8,
                       "owner": "eve"}]},
    )  # fmt: skip
    (figures,) = simulated("--cluster", cluster, "--workload", workload, "--sessions").values()
    assert (figures["submitted"], figures["ended"], figures["span_s"]) == (3, 3, 240)
    lives = figures["sessions"]
    assert [life["name"] for life in lives] == ["train-1", "train-2", "train-3"]
    assert [life["arrived_at"] for life in lives] == [60, 70, 80]
    assert [life["waited_s"] for life in lives] == [0, 0, 100]
    assert {life["owner"] for life in lives} == {"eve"}


def test_a_session_begins_no_sooner_than_the_workload_says(written, cluster):
    entry = {"cpu": 1, "at": "1h", "duration": "10m"}
    yaml_file = written("w.yml", {"sessions": [{**entry, "begin": begin} for begin in ("3h", 90, 0, None)]})
    lines = (f"3600,600,1,{begin}\n" for begin in ("10800", "1h30m", "0", ""))
    trace = written("t.csv", "arrival,duration,cpu,begin\n" + "".join(lines))
    lines = (f"2024-05-01 10:00:00,600,{begin}\n" for begin in ("2024-05-01T12:00:00Z", ""))
    dates = written("d.csv", "at,d,b\n" + "".join(lines))
    columns = ("--column=arrival=at", "--column=duration=d", "--column=begin=b")
    waited = []
    for arguments in ([yaml_file], [trace], [dates, *columns]):
        (figures,) = simulated("--cluster", cluster, "--sessions", "--workload", *arguments).values()
        waited.append([life["waited_s"] for life in figures["sessions"]])
    assert waited == [[7200, 1800, 0, 0], [7200, 1800, 0, 0], [7200, 0]]


def test_launches_take_their_time(written, cluster):
    workload = written("workload.yml", {"sessions": [{"duration": "2m", "cpu": 1}]})
    (figures,) = muster("simulate", "--json", "--launch-time", "30s", "--cluster", cluster, "--workload", workload
                        ).json.values()  # fmt: skip
    assert (figures["waits"]["max"], figures["span_s"]) == (30, 150)


def test_ways_are_compared_in_columns(written, cluster):
    sessions = [{"duration": "10m", "cpu": 8, "count": 2, "owner": owner} for owner in ("ada", "bob")]
    workload = written("workload.yml", {"sessions": sessions})
    answer = muster("simulate", "--cluster", cluster, "--workload", workload, "--compare", "fifo,lifo")
    lines = answer.out.splitlines()
    assert lines[0] == "2 agents, 4 sessions"
    assert lines[1].split() == ["fifo", "lifo"]
    assert next(line for line in lines if line.startswith("ended")).split() == ["ended", "4", "4"]
    assert sum(line.startswith("in use, ") for line in lines) == 2
    plans = simulated("--cluster", cluster, "--workload", workload, "--compare", "fifo,lifo", "--sessions")
    first = {name: [life["owner"] for life in way["sessions"] if life["waited_s"] == 0] for name, way in plans.items()}
    assert first == {"fifo": ["ada", "ada"], "lifo": ["bob", "bob"]}


def test_the_simulation_stops_at_the_given_time(written, cluster):
    workload = written("workload.yml", {"sessions": [{"duration": "10m", "cpu": 8, "count": 3}]})
    (figures,) = simulated("--cluster", cluster, "--workload", workload, "--until", "5m").values()
    assert (figures["running"], figures["waiting"], figures["span_s"]) == (2, 1, 300)


def test_a_trace_in_seconds_is_played(written, cluster):
    trace = written(
        "trace.csv", "arrival,duration,kernels,cpu,mem,gpu,owner,time_limit\n5,60,2,1,1G,1,ada,\n7,90,1,1,1G,,bob,1m\n"
    )
    (figures,) = simulated("--cluster", cluster, "--workload", trace, "--sessions").values()
    assert [(life["arrived_at"], life["ended_at"], life["fate"]) for life in figures["sessions"]] == [
        (5, 65, "ended"), (7, 67, "timed-out")
    ]  # fmt: skip


def test_jobs_of_a_trace_that_ask_for_the_same_keep_their_names(written, cluster):
    jobs = "\n".join(f"{name},0,60,1,1G,{after}" for name, after in (("one", ""), ("two", ""), ("three", "two")))
    trace = written("trace.csv", f"name,arrival,duration,cpu,mem,after_any\n{jobs}\n")
    (figures,) = simulated("--cluster", cluster, "--workload", trace, "--sessions").values()
    assert [(life["name"], life["ended_at"]) for life in figures["sessions"]] == [
        ("one", 60), ("two", 60), ("three", 120)
    ]  # fmt: skip


def test_openb_lists_are_played(written):
    nodes = written("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,V100\nn1,32000,1024,1,T4\n")
    (figures,) = simulated("--cluster", nodes, "--workload", written("pods.csv", OPENB), "--sessions").values()
    first, second = figures["sessions"]
    assert (first["name"], first["ended_at"], second["agents"], second["ended_at"]) == ("pod-0", 1100, ["n0"], 1060)


PHILLY = [
    {"status": "Pass", "vc": "ee9e8c", "jobid": "application_1", "submitted_time": "2017-10-07 01:00:00",
     "user": "ce2f4c",
     "attempts": [
         {"start_time": "2017-10-07 01:10:00", "end_time": "2017-10-07 01:11:00",
          "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]},
         {"start_time": "2017-10-07 02:00:00", "end_time": "2017-10-07 02:00:30",
          "detail": [{"ip": "m2", "gpus": ["gpu0", "gpu1"]}]}]},
    {"status": "Pass", "vc": "ee9e8c", "jobid": "application_2", "submitted_time": "2017-10-07 01:00:10", "user": "ada",
     "attempts": [{"start_time": "2017-10-07 01:10:00", "end_time": "2017-10-07 01:10:40",
                   "detail": [{"ip": "m1", "gpus": [f"gpu{n}" for n in range(8)]},
                              {"ip": "m2", "gpus": [f"gpu{n}" for n in range(4)]}]}]},
    {"status": "Killed", "vc": "6c71a0", "jobid": "never_tried", "submitted_time": "2017-10-07 01:01:00", "user": "bob",
     "attempts": []},
    {"status": "Pass", "vc": "6c71a0", "jobid": "still_runs", "submitted_time": "2017-10-07 01:02:00", "user": "bob",
     "attempts": [{"start_time": "2017-10-07 01:10:00", "end_time": None, "detail": []}]},
]  # fmt: skip
MACHINES = "machineId,number of GPUs,single GPU mem\nm1,8, 24GB\nm2,8, 24GB\n"


def test_phillys_log_is_played_as_published(written):
    """Attempts count together; a gang has equal kernels; of a job that never ran it is not known how long it would."""
    cluster, log = written("cluster_machine_list", MACHINES), written("cluster_job_log", json.dumps(PHILLY))
    flags = ("--cluster", cluster, "--workload", log, "--trace", "philly", "--sessions")
    (figures,) = simulated(*flags).values()
    first, second = figures["sessions"]
    assert (first["name"], first["owner"], second["owner"]) == ("application_1", "ce2f4c", "ada")
    assert second["arrived_at"] - first["arrived_at"] == 10
    assert [life["ended_at"] - life["started_at"] for life in (first, second)] == [90, 40]
    assert [sorted(life["agents"]) for life in (first, second)] == [["m1"], ["m1", "m2"]]
    assert figures["gang_waits"]["max"] == 0
    assert "2 agents, 2 sessions; 2 left out" in muster("simulate", *flags).out


def test_phillys_jobs_are_played_from_a_table_too(written):
    table = written(
        "philly.csv",
        "job_id,user,vc,gpu_num,state,submit_time,start_time,end_time,queue\n"
        "a1,ada,vc1,8,Pass,2017-10-07 01:00:00,2017-10-07 01:00:05,2017-10-07 01:00:35,5\n"
        "a2,bob,vc1,8,Failed,2017-10-07 01:00:01,None,None,\n"
        "a3,bob,vc1,1,Pass,2017-10-07 01:00:02,2017-10-07 01:00:05,2017-10-07 01:00:06,3\n",
    )
    cluster = written("machines.csv", "machineId,number of GPUs,single GPU mem\nm1,8,24GB\n")
    (figures,) = simulated("--cluster", cluster, "--workload", table, "--trace", "philly", "--sessions").values()
    assert [(life["name"], life["waited_s"]) for life in figures["sessions"]] == [("a1", 0), ("a3", 28)]


def test_a_trace_of_another_form_is_read_by_its_columns(written, cluster):
    trace = written(
        "trace.csv",
        "job,submitted,begun,over,gpus,cores,who,notes\n"
        "a,2024-05-01 10:00:00,2024-05-01 10:00:20,2024-05-01 10:01:20,1,2,ada,x\n"
        "b,2024-05-01T10:00:30Z,2024-05-01 11:00:00,,1,2,bob,y\n"
        "c,2024-05-01T12:00:30+02:00,2024-05-01 11:00:00,2024-05-01 11:00:07,1,2,bob,\n",
    )
    fields = {"name": "job", "arrival": "submitted", "start": "begun", "end": "over", "gpu": "gpus", "cpu": "cores",
              "owner": "who"}  # fmt: skip
    mapping = [f"--column={name}={column}" for name, column in fields.items()]
    (figures,) = simulated("--cluster", cluster, "--workload", trace, *mapping, "--sessions").values()
    first, second = figures["sessions"]
    assert [first["name"], second["name"]] == ["a", "c"]
    assert second["arrived_at"] - first["arrived_at"] == 30
    assert [life["ended_at"] - life["started_at"] for life in (first, second)] == [60, 7]


def test_a_window_shows_the_steady_state(written):
    workload = written("w.yml", {"sessions": [{"duration": "1m", "every": "1m", "count": 6, "cpu": 16}]})
    flags = ("--cluster", written("one.yml", {"agents": [{"cpu": 16, "mem": "32G"}]}), "--workload", workload)
    whole = simulated(*flags)["as set"]
    (middle,) = simulated(*flags, "--window", "1m..4m").values()
    (parts,) = simulated(*flags, "--window", "20%..80%").values()
    assert (whole["submitted"], middle["submitted"], parts["submitted"]) == (6, 3, 3)
    assert (middle["span_s"], middle["use"]["cpu"]) == (180, 1)
    assert middle["slowdowns"]["mean"] == 1


def test_names_of_dependencies_and_arrays_are_resolved(written, cluster):
    sessions = [
        {"name": "sweep", "array": "0-3%1", "duration": "1m", "cpu": 1},
        {"name": "report", "after_ok": ["sweep"], "duration": "1m", "cpu": 1},
    ]
    (figures,) = simulated("--cluster", cluster, "--workload", written("w.yml", {"sessions": sessions}), "--sessions"
                           ).values()  # fmt: skip
    assert [(life["name"], life["waited_s"]) for life in figures["sessions"]] == [
        ("sweep-0", 0), ("sweep-1", 60), ("sweep-2", 120), ("sweep-3", 180), ("report", 240)
    ]  # fmt: skip


def test_a_dependency_on_entries_of_which_some_come_later_waits_for_all(written, cluster):
    part = {"name": "part", "count": 3, "every": "10m", "duration": "1m", "cpu": 1}
    report = {"name": "report", "at": "5m", "after_ok": ["part"], "duration": "1m", "cpu": 1}
    (figures,) = simulated("--cluster", cluster, "--workload", written("w.yml", {"sessions": [part, report]}),
                           "--sessions").values()  # fmt: skip
    (found,) = (life for life in figures["sessions"] if life["name"] == "report")
    assert (found["fate"], found["waited_s"]) == ("ended", 960)


def test_the_examples_of_the_documentation_are_played():
    figures = simulated("--cluster", str(EXAMPLES / "cluster.yml"), "--workload", str(EXAMPLES / "workload.yml"))
    assert (figures["as set"]["submitted"], figures["as set"]["ended"]) == (130, 130)


def test_a_session_that_can_never_start_is_reported(written, cluster):
    workload = written("workload.yml", {"sessions": [{"duration": "1m", "cpu": 99}]})
    answer = muster("simulate", "--cluster", cluster, "--workload", workload, "--sessions")
    assert "never: it asks for more than" in answer.out


def ran(store: Store, session_id: str, seconds: float, **changes: object) -> None:
    """Let a session that waits have run so long on a1, and have these fields then."""
    session = store.find(session_id)
    at = session.submitted_at
    for before, after, changed in (
        (SessionState.PENDING, SessionState.SCHEDULED, {}),
        (SessionState.SCHEDULED, SessionState.PREPARING, {}),
        (SessionState.PREPARING, SessionState.RUNNING, {"started_at": at}),
        (SessionState.RUNNING, SessionState.TERMINATING, changes),
        (SessionState.TERMINATING, SessionState.TERMINATED, {"ended_at": at + seconds}),
    ):
        kernels = {k.id: {"allocation": k.allocation} for k in placed_on(session, "a1").kernels}
        store.apply([Event(session.id, at, before, after, "moves on", changed, kernels)])


def test_the_sites_own_agents_and_history_are_played(store: Store):
    """Agents count as if they answered; a session that ran, as long as it did."""
    store.agents.save([make_agent("a1", cpus=4).unanswered("ssh: connection timed out", NOW)])
    assert (
        "no session of the last 7 days has run" in muster("simulate", "--cluster", "live", "--workload", "history").err
    )
    for name in ("one", "two"):
        ran(store, submitted("--name", name, "--cpu", "4")["id"], 100)
    (figures,) = simulated("--cluster", "live", "--workload", "history", "--days", "1").values()
    assert (figures["ended"], round(figures["span_s"])) == (2, 200)
    # What administrators set holds there too.
    muster("limit", "set", "user", "ada", "running.cpu=1")
    (figures,) = simulated("--cluster", "live", "--workload", "history", "--days", "1").values()
    assert figures["ended"] == 0


def test_an_agent_that_has_left_the_inventory_is_no_part_of_the_cluster(store: Store, written):
    store.agents.save([make_agent("a1", cpus=4), make_agent("a2", cpus=12).unanswered(HAS_LEFT, NOW)])
    workload = written("workload.yml", {"sessions": [{"cpu": cpu, "duration": "60s"} for cpu in (4, 8)]})
    (figures,) = simulated("--cluster", "live", "--workload", workload).values()
    assert (figures["ended"], figures["never"], figures["use"]["cpu"]) == (1, 1, 1.0)


def test_a_session_of_the_history_that_was_extended_runs_as_long_as_it_did(store: Store):
    store.agents.save([make_agent("a1", cpus=4)])
    ran(store, submitted("--cpu", "4", "--time-limit", "1h")["id"], 3 * 3600, extended_s=2 * 3600)
    (figures,) = simulated("--cluster", "live", "--workload", "history", "--sessions").values()
    (life,) = figures["sessions"]
    assert (life["fate"], round(life["ended_at"] - life["started_at"])) == ("ended", 3 * 3600)


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("cluster", {"agents": [{"cpu": 8}]}, "agents[0].mem: it is missing; give it a value"),
        ("cluster", {"agents": [{"cpu": "2.5", "mem": "1G"}]}, "agents[0].cpu: '2.5' is not a number of cores"),
        ("cluster", {"agents": [{"cpu": 8, "mem": "1G", "gpu": 2}]}, "there is no such field; did you mean gpus?"),
        ("cluster", {"agents": [{"cpu": 8, "mem": "1G", "labels": 3}]}, "agents[0].labels: 3 is not a mapping"),
        ("cluster", {"agents": [{"cpu": 8, "mem": "1G"}] * 2}, "two agents are called agent-1"),
        ("cluster", {"agents": []}, "names no agent"),
        ("cluster", {"hosts": []}, "there is no key 'hosts'; write agents: and a list"),
        ("cluster", "agents: [", "is not YAML"),
        ("cluster", [{"cpu": 8, "mem": "1G"}], "holds no mapping; write agents: and a list below it"),
        ("workload", {"sessions": [{"cpu": 1}]}, "sessions[0].duration: it is missing"),
        ("workload", {"sessions": [{"duration": "1m", "cpus": 1}]}, "there is no such field; did you mean cpu?"),
        ("workload", {"sessions": [{"duration": "soon"}]}, "sessions[0].duration: 'soon' is not a span of time"),
        ("workload", {"sessions": [{"duration": "1m", "begin": "2026-11-22"}]}, "begin: '2026-11-22' is not"),
        ("workload", {"sessions": [{"name": "a", "duration": "1m", "after": ["b"]}]}, "a.after: no session of the"),
        ("workload", {"sessions": [3]}, "sessions[0] is not a mapping"),
        ("workload", {"sessions": []}, "names no session"),
        ("workload", [{"duration": "1m"}], "holds no mapping; write sessions: and a list below it"),
    ],
)  # fmt: skip
def test_an_error_in_a_file_is_reported_with_its_place(written, cluster, file, content, error):
    good = written("good.yml", {"sessions": [{"duration": "1m"}]})
    bad = written("bad.yml", content)
    answer = muster(
        "simulate", "--cluster", bad if file == "cluster" else cluster, "--workload", good if file == "cluster" else bad
    )
    assert answer.code == 2
    assert len(answer.errors) == 1
    assert error in answer.err
    assert bad in answer.err


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("arrival,duration,cpu\n1,60,much\n", "line 2: cpu: 'much' is not a number"),
        ("arrival,duration,cpu\n1,60\n", ":2: it has more or fewer columns than the first line"),
        ("arrival,cpu\n1,1\n", "line 2: duration: it is missing"),
        ("arrival,duration\n-1,60\n", "line 2: at: '-1' is not a span of time; write 0s, 90s, 30m, 2h, 1d; a bare"),
        ("arrival,duration\n1,soon\n", "2h, 1d; a bare number is seconds"),
        ("arrival,duration\n" + "1,soon\n" * 30, "10 more like these"),
    ],
)
def test_an_error_in_a_trace_is_reported_with_its_line(written, cluster, content, error):
    answer = muster("simulate", "--cluster", cluster, "--workload", written("trace.csv", content))
    assert (answer.code, error in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("began", "ended", "named"),
    [("5", "nan", "nan"), ("NaN", "9", "nan"), ("5", "-inf", "-inf"), ("later", "9", "later"), ("5", "later", "later")],
)
def test_a_start_or_an_end_that_is_no_time_is_reported(written, cluster, began, ended, named):
    trace = written("trace.csv", f"submitted,began,ended\n1,{began},{ended}\n")
    fields = {"arrival": "submitted", "start": "began", "end": "ended"}
    mapping = [f"--column={name}={column}" for name, column in fields.items()]
    answer = muster("simulate", "--cluster", cluster, "--workload", trace, *mapping)
    assert (answer.code, len(answer.errors)) == (2, 1), answer.out
    assert f"line 2: duration: {named!r} is not a span of time" in answer.err


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[3]", "job 0 is not a mapping"),
        ("[{", "is not JSON"),
        ("{}", "holds no list of jobs"),
        ('[{"attempts": 3}]', "job 0 is not as the README of philly-traces says"),
        ('[{"attempts": [{"start_time": 1, "end_time": 2, "detail": [4]}]}]', "job 0 is not as the README"),
        ('[{"jobid": "a", "submitted_time": "soon", "attempts": [{"start_time": "1", "end_time": "2"}]}]',
         "job 0: at: 'soon' is not a span of time"),
        (('[{"submitted_time": "1", "attempts": [{"start_time": "1", "end_time": "2"},'
         ' {"start_time": "soon", "end_time": "4"}]}]'), "job 0: duration: 'soon' is not a span of time"),
        ('[{"jobid": "a", "submitted_time": "2017-10-07 01:00:00"}]', "of none of its 1 jobs is it known how long"),
        *(
            (f"job_id,gpu_num,submit_time,duration\na,{number},1,1\n", "has no number of GPUs")
            for number in ("many", "inf", "NAN", "-4", "1.5", "2017-10-07")
        ),
    ],
)  # fmt: skip
def test_an_error_in_phillys_log_is_reported_with_its_place(written, cluster, content, error):
    log = written("cluster_job_log", content)
    answer = muster("simulate", "--cluster", cluster, "--workload", log, "--trace", "philly")
    assert (answer.code, error in answer.err, len(answer.errors)) == (2, True, 1), answer.err


def test_a_column_that_the_trace_does_not_have_is_reported(written, cluster):
    trace = written("trace.csv", "submitted,runs\n1,60\n")
    answer = muster("simulate", "--cluster", cluster, "--workload", trace, "--column", "arrival=submit", "--column",
                    "duration=runs")  # fmt: skip
    assert answer.code == 2
    assert "has no column 'submit'; its columns are submitted, runs" in answer.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--compare", "fifo,best"], "there is no scheduler plugin 'best'"),
        (["--until", "soon"], "--until: 'soon' is not a span of time"),
        (["--order", "pack"], "is no queue order"),
        (["--window", "2d"], "--window: '2d' is not FROM..TO"),
        (["--window", "2d..1d"], "--window: '2d..1d' is not FROM..TO"),
        (["--window", "10%..110%"], "--window: '110%' is no part of 100 %"),
        (["--column", "gpus=g"], "--column: there is no field 'gpus'; did you mean gpu?"),
        (["--column", "gpu"], "--column: 'gpu' is not FIELD=COLUMN"),
        (["--column", "gpu=g"], "--column: a trace needs arrival, and duration or start and end"),
        (["--column", "gpu=g", "--trace", "openb"], "--column: the columns of openb are known"),
    ],
)
def test_an_invalid_flag_is_reported(written, cluster, arguments, error):
    workload = written("workload.yml", {"sessions": [{"duration": "1m"}]})
    answer = muster("simulate", "--cluster", cluster, "--workload", workload, *arguments)
    assert (answer.code, error in answer.err) == (2, True)


def test_equal_files_give_equal_figures(written, cluster):
    workload = written("workload.yml", {"sessions": [{"duration": "3m", "cpu": 3, "count": 9, "every": "20s"}]})
    first, second = (simulated("--cluster", cluster, "--workload", workload, "--sessions") for _ in range(2))
    assert json.dumps(first) == json.dumps(second)

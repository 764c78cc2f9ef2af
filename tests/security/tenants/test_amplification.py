"""A small request that makes the control node or the agents do, store or send very much."""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.contract.folders import FolderState
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.model.folders import Folder
from muster.core.model.policy import EACH
from muster.core.model.session import SessionState
from muster.core.model.token import Scope
from muster.core.scheduling.limits import pending_refusal
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.limits_settings import LimitsSettings
from muster.service.folders.measurements import FRESH_S, MOST_WAITING, Measurements, Visited
from muster.service.specs.new_sessions import MAX_BYTES_AT_ONCE, new_sessions
from muster.service.usage import samples as usage_samples
from muster.web.problems import TooManyError
from muster.web.streams.caps import check_cap
from tests.modules.agent_code import agent_manifest
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import fake_key_pair
from tests.unit.running_sessions import running_session
from tests.waiting import PATIENCE_S, eventually

TEXT = "x" * 1000
MIB = "x" * (1 << 20)


def refusal(spec: dict[str, object], count: int = 1) -> str:
    with pytest.raises(BadInputError) as refused:
        new_sessions(validated(SessionSpec, spec), "ada", count, 0.0)
    return str(refused.value)


@pytest.mark.parametrize(
    ("spec", "count", "field"),
    [
        ({"script": MIB, "cluster_size": 1000, "run_on": "all"}, 1, "cluster_size"),
        ({"bootstrap": "x" * (256 << 10), "cluster_size": 1000}, 1, "cluster_size"),
        ({"command": "cat", "input": MIB}, 10_000, "count"),
        ({"command": "cat", "input": MIB, "array": "0-999"}, 1, "array"),
        ({"command": "x" * 100_000}, 10_000, "count"),
        ({"command": "true", "env": {f"A{n}": TEXT for n in range(100)}, "cluster_size": 100}, 100, "count"),
        ({"ssh_keys": [f"ssh-rsa {TEXT}"] * 60, "cluster_size": 10}, 1000, "count"),
        ({"labels": {f"a{n}": TEXT for n in range(1000)}}, 1000, "count"),
        ({"agents": [f"{n}{TEXT}" for n in range(1000)]}, 1000, "count"),
    ],
)
def test_a_spec_times_its_kernels_times_its_sessions_is_bounded(spec, count, field):
    line = refusal(spec, count)
    assert line.startswith(f"{field}: ")
    assert "put scripts, input and long variables into a data folder" in line
    assert len(line) < 300


def test_a_file_that_all_kernels_have_is_sent_to_an_agent_once():
    """Eight kernels with a script of 1 MiB: 1.0 MiB to their agent, and 8 MiB were it sent for each."""
    session = make_session(1, script=MIB, cluster_size=8, run_on="all")
    launched = placed_on(session, "a1", state=SessionState.PREPARING)
    keys = {session.id: fake_key_pair("s1")}
    written = manifest(make_agent("a1"), [launched], keys, 7, LaunchPolicy(), lambda name, _: name)
    sent = written.model_dump_json()
    assert len(MIB) < len(sent) < 1.05 * len(MIB)
    (read,) = agent_manifest.parse_manifest(json.loads(sent)).sessions
    files = [kernel.spec["files"] for kernel in read.kernels]
    assert [(each["job"]["content"] == MIB, each["job"]["mode"]) for each in files] == [(True, "0755")] * 8
    assert len(json.dumps(files)) > 8 * len(MIB)


def test_a_kernels_own_file_is_not_given_to_another():
    session = make_session(1, cluster_size=3, apps=[{"name": "mine", "port": 8888, "command": "serve"}])
    launched = placed_on(session, "a1", state=SessionState.PREPARING)
    keys = {session.id: fake_key_pair("s1")}
    written = manifest(
        make_agent("a1"),
        [launched],
        keys,
        7,
        LaunchPolicy(),
        lambda name, variables: f"{name} {variables.get('kernel')}",
    )
    (read,) = agent_manifest.parse_manifest(json.loads(written.model_dump_json())).sessions
    configs = {kernel.spec["files"]["sshd_config"]["content"] for kernel in read.kernels}
    assert len(configs) == len(read.kernels) == 3
    assert len({kernel.spec["files"]["id_ed25519"]["content"] for kernel in read.kernels}) == 1
    assert ["apps" in kernel.spec["files"] for kernel in read.kernels] == [True, False, False]


def test_usual_specs_are_far_below_the_bound():
    assert MAX_BYTES_AT_ONCE == 128 << 20
    sweep = validated(SessionSpec, {"command": "python train.py --seed $MUSTER_ARRAY_INDEX", "env": {"A": TEXT}})
    assert len(new_sessions(sweep, "ada", 10_000, 0.0)) == 10_000
    gang = validated(SessionSpec, {"command": "cat", "input": "x" * (100 << 10), "cluster_size": 1000})
    assert len(new_sessions(gang, "ada", 1, 0.0)[0].kernels) == 1000


def test_a_site_that_says_nothing_still_bounds_what_a_user_may_queue():
    limits = LimitsSettings().limits()
    assert limits.users[EACH].pending == {"sessions": 20_000, "kernels": 200_000}
    queued = [make_session(1)] * 20_000
    assert "user ada may have 20000 sessions waiting" in str(pending_refusal(limits, queued, [make_session(2)]))
    assert pending_refusal(limits, queued, [replace(make_session(2), owner="bob")]) is None


FOLDERS = [Folder(f"{number:08d}-0000-4000-8000-000000000000", "ada", f"f{number}", 0.0, None) for number in range(3)]


class Agents:
    """A stand-in for agents that counts visits. Each visit waits until a test lets it go on."""

    def __init__(self) -> None:
        self.visits: list[list[str]] = []
        self.at_once = self.most_at_once = 0
        self.began = threading.Semaphore(0)
        self.may_answer = threading.Event()

    def measure(self, folders: Sequence[Folder]) -> Visited:
        self.visits.append([folder.name for folder in folders])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.began.release()
        assert self.may_answer.wait(PATIENCE_S)
        self.at_once -= 1
        states = [
            FolderState(path=f.path, exists=True, used_bytes=5, files=1, quota=None, shared_from=None) for f in folders
        ]
        return Visited({"a1": states}, {"a2": "it is LOST"})


def test_concurrent_requests_measure_folders_once_and_few_wait():
    now = [0.0]
    agents, measurements = Agents(), Measurements(lambda: now[0])
    answers: list[Visited | Exception] = []

    def ask() -> None:
        try:
            answers.append(measurements.of(FOLDERS, agents.measure))
        except NotPossibleInStateError as error:
            answers.append(error)

    first = threading.Thread(target=ask)
    first.start()
    agents.began.acquire()
    others = [threading.Thread(target=ask) for _ in range(99)]
    for thread in others:
        thread.start()
    eventually(lambda: sum(isinstance(answer, Exception) for answer in list(answers)) >= 100 - MOST_WAITING)
    agents.may_answer.set()
    for thread in (first, *others):
        thread.join()
    assert agents.visits == [["f0", "f1", "f2"]]
    taken = [answer for answer in answers if isinstance(answer, Visited)]
    assert len(taken) == MOST_WAITING
    assert {use.used_bytes for answer in taken for folder in FOLDERS if (use := answer.use_of(folder))} == {5}
    assert all(answer.problems == {"a2": "it is LOST"} for answer in taken)


def test_a_measurement_grows_old_and_a_changed_folder_is_measured_anew():
    now = [0.0]
    agents, measurements = Agents(), Measurements(lambda: now[0])
    agents.may_answer.set()
    measurements.of(FOLDERS[:2], agents.measure)
    measurements.of(FOLDERS, agents.measure)
    measurements.forget(FOLDERS[0])
    measurements.of(FOLDERS, agents.measure)
    now[0] = FRESH_S
    measurements.of(FOLDERS[:1], agents.measure)
    assert agents.visits == [["f0", "f1"], ["f2"], ["f0"], ["f0"]]


class Slow:
    """A stand-in for agents that answer when a test lets them."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.may_answer = threading.Event()

    def wait(self) -> None:
        self.began.release()
        assert self.may_answer.wait(PATIENCE_S)


@pytest.fixture
def slow(service, monkeypatch) -> Slow:
    made = Slow()

    def samples(*_sessions, **_how):
        made.wait()
        yield []

    service.store.agents.save([make_agent("a1")])
    service.store.add([running_session(number, "a1", owner=owner) for number, owner in ((1, "ada"), (2, "bob"))])
    for owner, number in (("ada", 1), ("bob", 2)):
        service.store.folders.add(Folder(f"{number:08d}-0000-4000-8000-000000000000", owner, "data", 0.0, None))
    monkeypatch.setattr(usage_samples, "usage_samples", samples)
    monkeypatch.setattr(AnsibleGateway, "folders", lambda *_request: made.wait())
    return made


USE, QUOTA = ("GET", "/api/v1/use", None), ("POST", "/api/v1/folders/data/quota", {"quota_bytes": 1 << 30})


@pytest.mark.parametrize("request_", [USE, QUOTA], ids=["use", "quota"])
def test_one_user_has_agents_visited_for_few_requests_at_once(caller, slow, request_):
    method, path, body = request_
    ada, bob = caller("ada"), caller("bob")
    statuses = []

    def ask(client):
        statuses.append(client.request(method, path, json=body).status_code)

    threads = [threading.Thread(target=ask, args=[ada]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert slow.began.acquire(timeout=PATIENCE_S)
    refused = ada.request(method, path, json=body)
    assert refused.status_code == 409
    assert "of yours are" in refused.json()["detail"]
    threads.append(threading.Thread(target=ask, args=[bob]))
    threads[-1].start()
    assert slow.began.acquire(timeout=PATIENCE_S)
    slow.may_answer.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 9
    assert ada.request(method, path, json=body).status_code == 200


class Stream:
    def __init__(self, user: str) -> None:
        self.user = user


def test_one_users_streams_leave_room_for_others():
    mine = [Stream("ada") for _ in range(20)]
    with pytest.raises(TooManyError, match="20 logs of yours are open"):
        check_cap(mine, "ada", most=200, most_of_one=20, what="logs")
    check_cap(mine, "bob", most=200, most_of_one=20, what="logs")


def test_logs_and_event_streams_are_capped_for_each_user(caller, app, service):
    service.set_web(logs=20, event_streams=50)
    service.store.add([make_session(1)])
    ada = caller("ada", Scope.USER)
    app.state.log_streams |= {Stream("ada") for _ in range(20)}
    app.state.subscribers |= {Stream("ada") for _ in range(50)}
    for path in ("/api/v1/sessions/s1/kernels/main1/log", "/api/v1/events"):
        answer = ada.get(path)
        assert answer.status_code == 429
        assert "of yours are open; close one" in answer.json()["detail"]
        assert answer.headers["retry-after"] == "60"
    app.state.log_streams.clear()
    app.state.subscribers.clear()

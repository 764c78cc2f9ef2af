"""What a host says of itself."""

import json
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from muster.contract.report import report_from_agent
from muster.core.agents.numa import NumaNode
from muster.service.queue.observers import open_observer
from tests.modules.agent_code import (
    agent_names,
    agent_observer,
    agent_report,
    attachment,
    engine_api,
    host_report,
    numa,
    removal,
)
from tests.modules.cluster_on_host import IMAGE, ModuleFailedError
from tests.strategies.agents import make_agent
from tests.waiting import eventually


def test_a_host_reports_what_it_has(cluster):
    report = cluster.report()
    assert report_from_agent(report).docker.storage_driver == report["docker"]["storage_driver"]
    info = cluster.engine.info()
    assert report["version"] == 1
    assert report["cpu_count"] == info["NCPU"]
    assert 0 < report["mem_available_bytes"] < report["mem_bytes"] == info["MemTotal"]
    assert report["disk"]["path"] == info["DockerRootDir"]
    assert 0 < report["disk"]["free_bytes"] < report["disk"]["total_bytes"]
    assert report["docker"]["version"] == info["ServerVersion"]
    assert report["docker"]["cgroup_version"] in {"1", "2"}
    assert IMAGE in [tag for image in report["images"] for tag in image["tags"]]
    # In the same order each time: a decision need not be made anew.
    assert report["images"] == sorted(report["images"], key=lambda image: image["id"])
    assert report["generation"] is None
    assert (report["kernels"], report["networks"], report["files"]) == ([], [], [])
    assert report["runtime"].startswith("openssh-")
    libraries = Path(agent_names.FGPU_PATH, "VERSION")
    assert report["fgpu"] == (libraries.read_text().splitlines()[0] if libraries.exists() else None)
    assert cluster.report(runtime_path="/nowhere")["runtime"] is None


def test_an_engine_that_does_not_answer_is_named_with_its_remedy(cluster, monkeypatch, tmp_path):
    absent = str(tmp_path / "docker.sock")
    monkeypatch.setattr(agent_report, "EngineApi", lambda: engine_api.EngineApi(absent))
    with pytest.raises(ModuleFailedError) as failed:
        cluster.report()
    assert failed.value.result["msg"] == (
        f"the Docker engine does not answer at {absent}: [Errno 2] No such file or directory. "
        "Start it (systemctl start docker), or install it with playbooks/site.yml."
    )


@pytest.fixture
def sysfs(tmp_path):
    """Write what the kernel says of a host with two nodes of cores and one of memory only."""
    for node, cpus, kilobytes in ((0, "0-15,32-47", 4096), (10, "", 512), (2, "16-31,48-63", 2048)):
        directory = tmp_path / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{cpus}\n")
        (directory / "meminfo").write_text(f"Node {node} MemTotal:       {kilobytes} kB\nNode {node} MemFree: 1 kB\n")
    (tmp_path / "sys/devices/system/node/online").write_text("0,2,10\n")
    return tmp_path / "sys"


def test_numa_nodes_are_reported_with_their_cpus_and_memory(sysfs, tmp_path):
    assert numa.numa_nodes(sysfs) == [
        {"node": 0, "cpus": "0-15,32-47", "mem_bytes": 4 << 20},
        {"node": 2, "cpus": "16-31,48-63", "mem_bytes": 2 << 20},
        {"node": 10, "cpus": "", "mem_bytes": 512 << 10},
    ]
    assert numa.numa_nodes(tmp_path / "nothing") == []


def test_this_hosts_numa_nodes_have_its_cpus(cluster):
    report = cluster.report()
    nodes = [NumaNode(node["node"], node["cpus"], node["mem_bytes"]) for node in report["numa"]]
    assert sum(node.cpu for node in nodes) == report["cpu_count"] * 1000
    assert 0 < sum(node.mem for node in nodes) <= report["mem_bytes"] * 1.1


def test_the_program_that_stays_on_an_agent_reports_what_the_module_does(cluster):
    agent = make_agent("here", inventory={"connection": "local"})
    with open_observer(agent, cluster.name, cluster.folders_root) as program:
        for _ in range(2):
            program.write(b"\n")
            said = json.loads(program.line(1 << 20))["report"]
            report = cluster.report(folders_root=str(cluster.folders_root))
            assert report_from_agent(said).hostname == report["hostname"]
            assert said["uptime_s"] <= report["uptime_s"]
            # Others use this host meanwhile.
            same = said.keys() - {"uptime_s", "mem_available_bytes", "disk", "images"}
            assert {name: said[name] for name in same} == {name: report[name] for name in same}


def test_the_program_says_what_is_wrong_with_the_engine(monkeypatch, tmp_path):
    absent = str(tmp_path / "docker.sock")
    monkeypatch.setattr(agent_observer, "EngineApi", lambda: engine_api.EngineApi(absent))
    said = agent_observer._said({"cluster": "c", "folders_root": None})
    assert said["failed"].startswith(f"the Docker engine does not answer at {absent}: ")


class LogServer(ThreadingHTTPServer):
    """A server for the engine's driver `splunk`: the engine is at work on a container until its log is answered for."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers_hello, self.answers_lines, self.asked = Event(), Event(), Event()
        super().__init__(("127.0.0.1", 0), _LogRequest)

    def let_go(self) -> None:
        self.answers_hello.set()
        self.answers_lines.set()


class _LogRequest(BaseHTTPRequestHandler):
    server: LogServer

    def do_OPTIONS(self) -> None:
        self._answer(self.server.answers_hello)

    def do_POST(self) -> None:
        self._answer(self.server.answers_lines)

    def _answer(self, may_answer: Event) -> None:
        self.server.asked.set()
        may_answer.wait()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def log_server() -> Iterator[LogServer]:
    with LogServer() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        # Only then can its containers be removed, by the cluster's end.
        server.let_go()
        server.shutdown()


def create(cluster, kernel: str, *options: str, command: str = "echo hello") -> str:
    """Make a container that counts as a kernel; return its id."""
    labels = {
        agent_names.LABEL_CLUSTER: cluster.name,
        agent_names.LABEL_SESSION: "5" * 32,
        agent_names.LABEL_KERNEL: kernel * 4,
        agent_names.LABEL_KERNEL_NAME: kernel,
        agent_names.LABEL_GENERATION: "1",
    }
    given = [part for name, value in labels.items() for part in ("--label", f"{name}={value}")]
    name = agent_names.container_name("5" * 32, kernel) + cluster.name
    command_line = ["docker", "create", "--name", name, *given, *options, IMAGE, "sh", "-c", command]
    return subprocess.run(command_line, check=True, capture_output=True, text=True).stdout.strip()


def hanging_log(server: LogServer) -> list[str]:
    url = f"splunk-url=http://127.0.0.1:{server.server_address[1]}"
    return ["--log-driver", "splunk", "--log-opt", "splunk-token=x", "--log-opt", url]


def begin_to_start(container_id: str) -> None:
    subprocess.Popen(["docker", "start", container_id], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def is_undescribed(container_id: str) -> bool:
    try:
        engine_api.EngineApi().container(container_id, 2)
    except engine_api.EngineSilentError:
        return True
    return False


@pytest.mark.parametrize("listed", ["created", "running", "exited"])
def test_a_container_whose_driver_hangs_hides_none_of_the_others(cluster, log_server, monkeypatch, listed):
    """The engine describes it only when the driver lets it go, and the host once had no report until then."""
    monkeypatch.setattr(host_report, "DESCRIPTION_PATIENCE_S", 3)
    other = create(cluster, "main1", command="sleep 1000")
    subprocess.run(["docker", "start", other], check=True, capture_output=True)
    hanging = create(cluster, "sub1", *hanging_log(log_server), command="echo hello; exit 3")
    if listed == "running":
        # It has ended; the engine says so once its last lines have been sent.
        log_server.answers_hello.set()
    if listed == "exited":
        log_server.let_go()
        subprocess.run(["docker", "start", "--attach", hanging], check=False, capture_output=True)
        eventually(lambda: cluster.engine.container(hanging)["State"]["Status"] == "exited")
        log_server.answers_hello.clear()
    log_server.asked.clear()
    begin_to_start(hanging)
    log_server.asked.wait()
    eventually(lambda: is_undescribed(hanging))
    given = cluster._run(agent_report, {"cluster": cluster.name})
    main1, sub1 = given["report"]["kernels"]
    assert (main1["container_id"], main1["state"]) == (other, "running")
    assert main1["started_at"] is not None
    assert (sub1["container_id"], sub1["state"]) == (hanging, listed)
    assert sub1["exit_code"] == (3 if listed == "exited" else None)
    assert sub1["started_at"] is None
    assert report_from_agent(given["report"]).kernels[1].state == listed
    (warning,) = given["warnings"]
    assert warning.startswith(f"the engine does not describe {agent_names.container_name('5' * 32, 'sub1')}, ")
    log_server.let_go()
    eventually(lambda: not is_undescribed(hanging))
    eventually(lambda: cluster.report()["kernels"][1]["exit_code"] == 3)


@pytest.mark.parametrize("listed", ["created", "running"])
def test_a_container_whose_driver_hangs_is_left_and_the_others_are_removed(cluster, log_server, monkeypatch, listed):
    monkeypatch.setattr(attachment, "DESCRIPTION_PATIENCE_S", 3)
    monkeypatch.setattr(removal, "_PATIENCE_S", 3)
    monkeypatch.setattr(host_report, "DESCRIPTION_PATIENCE_S", 3)
    create(cluster, "main1")
    hanging = create(cluster, "sub1", *hanging_log(log_server))
    if listed == "running":
        log_server.answers_hello.set()
    begin_to_start(hanging)
    log_server.asked.wait()
    eventually(lambda: is_undescribed(hanging))
    report = cluster.converge()["report"]
    assert [(kernel["container_id"], kernel["state"]) for kernel in report["kernels"]] == [(hanging, listed)]
    (left,) = report["leftovers"]
    assert "does not answer" in left["error"]
    log_server.let_go()
    eventually(lambda: not is_undescribed(hanging))
    eventually(lambda: not cluster.converge()["report"]["kernels"])

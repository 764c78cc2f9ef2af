"""Runs of roles that break off between a change of a service's files and its restart: the next run restarts it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from tests.modules.agent_code import stale_service
from tests.running.forked_ansible import LOCAL, ROOT, ansible
from tests.unit.inventory.test_files_of_hosts import tasks_of


class Service:
    """A process with a pid file, and files that it may have read when it started."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.pid_file = directory, directory / "pid"
        self.pid_file.write_text(str(os.getpid()), encoding="ascii")

    def has_read(self, *names: str) -> None:
        """Make the files older than this process, which is the service's."""
        for name in names:
            os.utime(self.directory / name, times=(time.time() - 86400,) * 2)

    def ends(self) -> None:
        self.pid_file.write_text("", encoding="ascii")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that runs, also for systemd if this machine has it."""
    found = Service(tmp_path)
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "show --property=MainPID --value" ] && cat {found.pid_file}\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:{os.environ['PATH']}")
    return found


@pytest.fixture
def without_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stale_service, "SYSTEMD", tmp_path / "no such directory")


@pytest.fixture
def is_stale(service: Service, capsys: pytest.CaptureFixture[str]) -> Callable[..., bool]:
    def run(*names: str) -> bool:
        files = [str(service.directory / name) for name in names]
        capsys.readouterr()
        arguments = {"service": "muster", "pid_file": str(service.pid_file), "files": files}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            stale_service.main()
        answer = json.loads(capsys.readouterr().out)
        assert answer["changed"] is False
        return bool(answer["stale"])

    return run


@pytest.mark.usefixtures("without_systemd")
def test_a_service_is_stale_if_any_of_its_files_is_newer_than_its_process(service, is_stale):
    for name in ("settings", "unit"):
        (service.directory / name).touch()
    service.has_read("settings", "unit")
    assert not is_stale("settings", "unit", "missing")
    (service.directory / "unit").touch()
    assert is_stale("settings", "unit", "missing")
    service.ends()
    assert not is_stale("settings", "unit")


def test_with_systemd_its_main_process_is_compared(service, is_stale, tmp_path, monkeypatch):
    monkeypatch.setattr(stale_service, "SYSTEMD", tmp_path)
    (tmp_path / "settings").touch()
    assert is_stale("settings")
    service.has_read("settings")
    assert not is_stale("settings")
    service.pid_file.write_text("0\n", encoding="ascii")
    (tmp_path / "settings").touch()
    assert not is_stale("settings")


@pytest.mark.usefixtures("without_systemd")
def test_a_process_that_was_started_right_after_a_change_is_not_stale(service, is_stale):
    """A run restarts what it has just changed; the next run changes nothing."""
    (service.directory / "settings").touch()
    time_of_change = (service.directory / "settings").stat().st_mtime
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        # The kernel counts a process's start in hundredths of a second.
        os.utime(service.directory / "settings", times=(time_of_change - 0.02,) * 2)
        service.pid_file.write_text(str(process.pid), encoding="ascii")
        assert not is_stale("settings")
        process.communicate(b"\n")


def run_tasks(directory: Path, tasks: list[dict[str, Any]], **variables: object) -> subprocess.CompletedProcess[str]:
    play = directory / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
    done = ansible("ansible-playbook", "-i", "host,", "-e", json.dumps({**LOCAL, **variables}), play)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("what", "file", "service_name"), [("daemon", "run", "muster-daemon"), ("web", "web", "muster-web")]
)
def test_a_control_nodes_service_is_restarted_by_the_run_after_one_that_broke_off(service, what, file, service_name):
    tasks = yaml.safe_load((ROOT / f"roles/control_node/tasks/{file}.yml").read_text())
    (compare,) = (task for task in tasks if "stale_service" in task)
    assert compare["stale_service"]["pid_file"] == f"/run/{service_name}.pid"
    files = {
        name: str(service.directory / str(number)) for number, name in enumerate(compare["stale_service"]["files"])
    }
    # The settings, and what an installation writes: a development version keeps its number.
    looked_at = [files["/etc/muster/muster.yml"], files["{{ control_node_muster_executable }}"]]
    compare["stale_service"] |= {"pid_file": str(service.pid_file), "files": list(files.values())}
    states = yaml.safe_load((ROOT / "roles/control_node/vars/main.yml").read_text())
    show = {"ansible.builtin.debug": {"msg": f"it is {{{{ control_node_{what}_state }}}}"}}
    nothing = {"changed": False}
    written = ("settings", "unit", "script", "web_unit", "web_script")
    registered = {**{f"control_node_{name}_written": nothing for name in written}, "control_node_web_user": nothing}
    looked = {"control_node_daemon_enabled": True, "control_node_can_serve": True}

    touch = {"path": "{{ item }}", "state": "touch"}
    age = {"ansible.builtin.file": {**touch, "modification_time": "202001010000.00"}, "loop": looked_at}
    tasks = [age, compare, show]
    for path in looked_at:
        tasks += [{"ansible.builtin.file": touch, "loop": [path]}, compare, show, age]
    said = run_tasks(service.directory, tasks, **{**states, **registered, **looked}).stdout
    assert re.findall("it is ([a-z]+)", said) == ["started", "restarted", "restarted"]


@pytest.fixture
def configure(service: Service) -> Callable[..., str]:
    """Runs the engine's configuration on files of the test's, up to a task that the run breaks off before."""
    directory = service.directory
    (directory / "restart.yml").write_text(
        yaml.safe_dump([{"name": "It restarts", "ansible.builtin.command": {"argv": ["true"]}}]), encoding="utf-8"
    )
    (directory / "docker").mkdir()
    (directory / "docker/daemon.json").write_text('{"proxies": {"https-proxy": "http://ada:s3cret@proxy"}}')
    python = directory / "bin/python3"
    python.write_text(f'#!/bin/sh\necho "$@" >>{directory}/arguments\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    text = (ROOT / "roles/docker_engine/tasks/configure.yml").read_text()
    text = text.replace("/etc/docker", str(directory / "docker")).replace("/var/run/docker.pid", str(service.pid_file))
    defaults = yaml.safe_load((ROOT / "roles/docker_engine/defaults/main.yml").read_text())
    own = yaml.safe_load((ROOT / "roles/docker_engine/vars/main.yml").read_text())
    own["docker_engine_former_file"] = str(directory / "former")

    def run(until: str = "") -> str:
        tasks = yaml.safe_load(text)
        for task in tasks_of(tasks):
            for module in task:
                if module.startswith("ansible.builtin.") and isinstance(task[module], dict):
                    # The role writes as root.
                    task[module].pop("owner", None)
                    task[module].pop("group", None)
            if "ansible.builtin.include_tasks" in task:
                task["ansible.builtin.include_tasks"] = str(directory / "restart.yml")
            if task["name"] == "List the containers that a restart would end":
                task.pop("ansible.builtin.uri")
                task["ansible.builtin.set_fact"] = {"docker_engine_nothing": True}
        if until:
            (at,) = (index for index, task in enumerate(tasks) if "block" in task)
            names = [task["name"] for task in tasks[at]["block"]]
            tasks[at]["block"] = tasks[at]["block"][: names.index(until)]
            tasks = tasks[: at + 1]
        found = {
            "docker_engine_state": {"status": 200, "json": {"LiveRestoreEnabled": False}},
            "docker_engine_is_service": True,
            "docker_engine_installed": True,
            "docker_engine_systemd": {"stat": {"exists": False}},
        }
        return run_tasks(directory, tasks, **defaults, **own, **found).stdout

    return run


@pytest.mark.parametrize("is_restarted_meanwhile", [False, True])
def test_an_engine_is_restarted_by_the_run_after_one_that_broke_off(service, configure, is_restarted_meanwhile):
    """Unless it was restarted by itself."""
    configure(until="Restart the engine")
    assert "10.200.0.0/14" in (service.directory / "docker/daemon.json").read_text(encoding="utf-8")
    if is_restarted_meanwhile:
        service.has_read("former")
    assert ("It restarts" in configure()) is not is_restarted_meanwhile
    assert not (service.directory / "former").exists()
    # Arguments of programs can be read by all users of a host.
    arguments = (service.directory / "arguments").read_text(encoding="utf-8")
    assert "json" in arguments
    assert "s3cret" not in arguments

"""The daemon's gateway: programs that stay open report in place of plays, which still read what the inventory says."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster import private_directories
from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.playbook import Inventory
from muster.ansible_gateway.plays_ahead import has_lasting_values
from muster.contract.report import Report
from muster.core.agents.agent import Agent, agent_from_report
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.turn.answer import AgentAnswer
from muster.service.queue.observers import Observers
from muster.service.queue.observing_gateway import ObservingGateway
from tests.simulated.hosts import report_of
from tests.strategies.agents import make_agent
from tests.waiting import eventually

BY_PLAY, BY_PROGRAM = 1, 2


class Program:
    """An agent's program: it says the next of `lines` whenever it is asked, and then the last one again."""

    def __init__(self, lines: list[bytes | None]) -> None:
        self.lines = lines

    def say(self) -> bytes | None:
        return self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]


class Open(Observers):
    """Observers whose programs are here: the real ones are tested with the real programs (test_observers.py)."""

    def __init__(self) -> None:
        super().__init__(lambda _: pytest.fail("nothing is opened here"))
        self.programs: dict[str, Program] = {}
        self.offered: list[str] = []
        self.agents: dict[str, Agent] = {}

    def offer(self, agent: Agent) -> None:
        self.offered.append(agent.id)
        self.agents[agent.id] = agent

    def among(self, inventory):
        return frozenset(
            id_ for id_ in inventory if id_ in self.programs and self.agents[id_].inventory == inventory[id_]
        )

    def ask(self, agent_ids, on_lines):
        said = {agent_id: self.programs[agent_id].say() for agent_id in agent_ids if agent_id in self.programs}
        lines = {agent_id: line for agent_id, line in said.items() if line is not None}
        on_lines(lines)
        for agent_id in said.keys() - lines.keys():
            self.drop(agent_id)
        return frozenset(lines)

    def drop(self, agent_id):
        self.programs.pop(agent_id, None)

    def drop_all(self):
        self.programs.clear()


@dataclass
class Site:
    """An inventory of agents that answer plays with a report, the gateway to them, and what has reported so far."""

    inventory: Path
    observers: Open
    gateway: ObservingGateway
    reported: dict[str, Report] = field(default_factory=dict)

    def answers(self, *agent_ids: str, without: tuple[str, ...] = ()) -> list[AgentAnswer]:
        answers: list[AgentAnswer] = []
        self.gateway.observe(agent_ids, answers.append, without)
        assert len(answers) == len({answer.agent_id for answer in answers})
        return answers

    def observe(self, *agent_ids: str, without: tuple[str, ...] = ()) -> dict[str, int | str]:
        """Return who reported by what, or what was wrong with them."""
        answers = self.answers(*agent_ids, without=without)
        for answer in answers:
            if answer.report is not None:
                self.reported[answer.agent_id] = answer.report
                self.gateway.offer(agent_from_report(answer.agent_id, answer.report, answer.inventory, 0.0))
        return {a.agent_id: a.problem if a.report is None else a.report.cpu_count for a in answers}

    def open(self, *agent_ids: str, says: list[bytes | None] | None = None) -> None:
        """Open programs on agents."""
        for agent_id in agent_ids:
            self.observers.programs[agent_id] = Program(says or [line(report(agent_id, BY_PROGRAM))])


def report(agent_id: str, cpu_count: int, **changes: Any) -> dict[str, Any]:
    return {**report_of(agent_id), "cpu_count": cpu_count, **changes}


def line(said: dict[str, Any]) -> bytes:
    return json.dumps({"report": said}).encode()


def write_inventory(path: Path, *names: str, **variables: str) -> None:
    """Write an inventory of hosts whose Python answers whatever it is sent with their report."""
    hosts = {}
    for name in names:
        python = path.with_name(f"python-of-{name}")
        said = json.dumps({"changed": False, "report": report(name, BY_PLAY)})
        python.write_text(f"#!/bin/sh\ncat >/dev/null\ncat <<'END'\n{said}\nEND\n", encoding="utf-8")
        python.chmod(0o755)
        hosts[name] = {"ansible_connection": "local", "ansible_python_interpreter": str(python), **variables}
    path.write_text(yaml.safe_dump({"all": {"children": {"agents": {"hosts": hosts}}}}), encoding="utf-8")


@contextmanager
def site_of(directory: Path, *names: str) -> Iterator[Site]:
    inventory = directory / "hosts.yml"
    write_inventory(inventory, *names)
    observers = Open()
    with closing(AnsibleGateway(Inventory(inventory), "muster")) as plays:
        yield Site(inventory, observers, ObservingGateway(plays, inventory, observers))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield a site whose two agents have been observed by a play."""
    with site_of(tmp_path, "a1", "a2") as site:
        assert site.observe() == {"a1": BY_PLAY, "a2": BY_PLAY}
        yield site


def test_programs_report_where_they_are_open_and_a_play_asks_the_others(site):
    # In the order in which the play had their answers.
    assert sorted(site.observers.offered) == ["a1", "a2"]
    site.open("a1")
    assert site.observe() == {"a1": BY_PROGRAM, "a2": BY_PLAY}
    site.open("a2")
    assert site.observe() == {"a1": BY_PROGRAM, "a2": BY_PROGRAM}
    assert site.observe("a2") == {"a2": BY_PROGRAM}
    assert site.observe(without=("a2",)) == {"a1": BY_PROGRAM}


def test_files_that_a_killed_process_left_go_though_no_play_runs(site, tmp_path, monkeypatch):
    site.open("a1", "a2")
    monkeypatch.setattr(private_directories, "_parent", lambda: tmp_path)
    left = tmp_path / "muster-x1y2z3a4"
    left.mkdir()
    assert site.observe("a1", "a2") == {"a1": BY_PROGRAM, "a2": BY_PROGRAM}
    assert left.exists()
    assert site.observe() == {"a1": BY_PROGRAM, "a2": BY_PROGRAM}
    assert not left.exists()


def test_what_the_inventory_says_of_an_agent_comes_with_its_report(site):
    write_inventory(site.inventory, "a1", rack="north")
    site.observe()
    site.open("a1")
    answers = site.answers()
    assert [(a.report and a.report.cpu_count, a.inventory["rack"]) for a in answers] == [(BY_PROGRAM, "north")]


def test_a_play_asks_those_whose_program_is_silent(site):
    site.open("a1", says=[None])
    site.open("a2")
    assert site.observe() == {"a1": BY_PLAY, "a2": BY_PROGRAM}


def test_a_changed_inventory_is_read_by_a_play_that_asks_everybody(site):
    site.open("a1", "a2")
    write_inventory(site.inventory, "a1", "a3")
    assert site.observe() == {"a1": BY_PLAY, "a3": BY_PLAY}
    assert site.observers.programs == {}
    site.open("a1", "a3")
    assert site.observe() == {"a1": BY_PROGRAM, "a3": BY_PROGRAM}


def test_after_a_change_everybody_is_asked_by_a_play_until_none_was_left_out(site):
    site.open("a1", "a2")
    write_inventory(site.inventory, "a1", "a2", "a3")
    assert site.observe(without=("a2",)) == {"a1": BY_PLAY, "a3": BY_PLAY}
    # Whether a2 is still in the inventory has not been seen.
    assert site.observe() == {"a1": BY_PLAY, "a2": BY_PLAY, "a3": BY_PLAY}
    site.open("a1", "a2", "a3")
    assert site.observe() == dict.fromkeys(("a1", "a2", "a3"), BY_PROGRAM)


@pytest.mark.parametrize(
    ("value", "lasts"),
    [
        ("north", True),
        ("{{ [1, 2] | first }}", True),
        ("a lookup of names", True),
        ("{{ lookup('ansible.builtin.file', '/x') }}", False),
        ("{{ query('ansible.builtin.env', 'X') }}", False),
        ("{{ q('ansible.builtin.env', 'X') }}", False),
        ("{{ now() }}", False),
        ("{{ [1, 2] |random }}", False),
        ("$ANSIBLE_VAULT;1.1;AES256", False),
    ],
)
def test_it_is_known_which_values_may_be_others_each_time(tmp_path, value, lasts):
    write_inventory(tmp_path / "hosts.yml", "a1")
    assert has_lasting_values(tmp_path / "hosts.yml")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "agents.yml").write_text(yaml.safe_dump({"rack": value}))
    assert has_lasting_values(tmp_path / "hosts.yml") == lasts


def test_values_that_may_be_others_each_time_are_read_by_plays(site):
    site.open("a1", "a2")
    write_inventory(site.inventory, "a1", "a2", rack="{{ lookup('ansible.builtin.pipe', 'date') }}")
    site.observers.offered.clear()
    for _ in range(2):
        assert site.observe() == {"a1": BY_PLAY, "a2": BY_PLAY}
    assert site.observers.offered == []


def test_an_inventory_that_is_a_program_is_run_each_time(site):
    site.open("a1", "a2")
    variables = yaml.safe_load(site.inventory.read_text())["all"]["children"]["agents"]["hosts"]["a1"]
    said = json.dumps({"agents": {"hosts": ["a1"]}, "_meta": {"hostvars": {"a1": variables}}})
    site.inventory.write_text(f"#!/bin/sh\necho '{said}'\n")
    site.inventory.chmod(0o755)
    for _ in range(2):
        assert site.observe() == {"a1": BY_PLAY}


def test_what_a_program_says_is_checked_as_what_a_module_says_is(site):
    refused = "its answer is refused: "
    problems = {
        b"{": f"{refused}it is not an object of JSON",
        b"[" * 100_000: f"{refused}it is not an object of JSON",
        b"7": f"{refused}it is not an object of JSON",
        b"{}": f"{refused}report: Input should be a valid dictionary or instance of Report",
        line({"version": 1}): f"{refused}report: hostname is missing",
        line(report("a1", 2, images=7)): f"{refused}report.images: Input should be a valid tuple",
        line(report("a1", 2, more=1)): f"{refused}report.more: Extra inputs are not permitted",
        b'{"failed": "no engine\\n\\u001b[31mhere"}': "no engine \N{REPLACEMENT CHARACTER}[31mhere",
        b'{"failed": [["x"]]}': f"{refused}its reason for no report is no text",
        b'{"failed": {}}': f"{refused}report: Input should be a valid dictionary or instance of Report",
    }
    site.open("a2")
    for said, problem in problems.items():
        site.open("a1", says=[said])
        assert site.observe() == {"a1": problem, "a2": BY_PROGRAM}


def test_images_are_checked_again_when_they_are_others(site):
    def images(*names: str) -> list[dict[str, Any]]:
        return [{"id": f"sha256:{name}", "tags": [f"{name}:1"], "size_bytes": 1} for name in names]

    both = line(report("a1", 2, images=images("x", "y")))
    site.open("a1", says=[both, both, line(report("a1", 2, images=images("x"))), line(report("a1", 2, images=[{}]))])
    site.observe("a1")
    first = site.reported["a1"]
    site.observe("a1")
    second = site.reported["a1"]
    assert second == first
    assert all(one is other for one, other in zip(second.images, first.images, strict=True))
    site.observe("a1")
    assert [image.tags for image in site.reported["a1"].images] == [("x:1",)]
    assert site.observe("a1") == {"a1": "its answer is refused: report.images[0].id: Field required (and 1 more)"}


def test_an_agent_that_gave_no_report_to_a_manifest_is_observed_by_a_play(site):
    site.open("a1", "a2")
    written = manifest(make_agent("a1"), (), {}, 7, LaunchPolicy(), lambda name, _: name)
    answers: list[AgentAnswer] = []
    # Its Python says the same to every module: what came of the manifest is missing.
    site.gateway.converge({"a1": written}, answers.append)
    assert [answer.report for answer in answers] == [None]
    assert site.observe() == {"a1": BY_PLAY, "a2": BY_PROGRAM}


def test_real_programs_are_opened_on_agents_that_a_play_has_observed(tmp_path):
    opened: list[str] = []

    @contextmanager
    def open_program(agent):
        opened.append(agent.id)
        raise OSError
        yield

    inventory = tmp_path / "hosts.yml"
    write_inventory(inventory, "a1")
    with closing(AnsibleGateway(Inventory(inventory), "muster")) as plays:
        gateway = ObservingGateway(plays, inventory, Observers(open_program))
        answers: list[AgentAnswer] = []
        gateway.observe((), answers.append)
        gateway.offer(agent_from_report("a1", answers[0].report, answers[0].inventory, 0.0))
        eventually(lambda: opened == ["a1"])

"""What `muster doctor` finds of agents."""

import os
import pwd
from dataclasses import replace

import pytest

from muster.cli.doctor import _agent, _known_agents, encryption_finding, gpu_findings, unreachable_finding
from muster.core.agents.agent import reported_again
from muster.core.turn.answer import AgentAnswer
from muster.settings import load_settings
from tests.command_line import muster, write_settings
from tests.strategies.agents import make_agent, reporting


@pytest.mark.parametrize(
    ("wish", "encrypts", "ok", "found"),
    [
        ("auto", True, True, "IPsec"),
        ("auto", False, False, "Linux 6.1.0 has no ESP with AES-GCM"),
        (True, False, False, "Linux 6.1.0 has no ESP with AES-GCM"),
        (False, False, True, "none, as overlay_network_encrypted says"),
        (False, True, True, "none, as overlay_network_encrypted says"),
    ],
)
def test_traffic_between_agents_in_the_clear_is_a_finding_unless_the_site_decided_so(wish, encrypts, ok, found):
    agent = make_agent("a1", swarm="worker", encrypts=encrypts, overlay_encrypted=wish)
    finding = encryption_finding(agent)
    assert finding.ok is ok
    assert finding.found.startswith(found)


def test_gpus_that_are_sick_or_that_running_containers_can_lose_are_findings():
    agent = make_agent(gpus=2, units_per_gpu=2)
    assert [(finding.check, finding.ok) for finding in gpu_findings("agent a1", agent)] == [
        ("agent a1: GPUs for containers", True),
        ("agent a1: fgpu", True),
    ]
    sick, well = agent.report.model_dump(mode="json")["gpu_health"]
    sick["recovery"] = "reset of the GPU"
    troubled = reporting(agent, gpu_health=[sick, well], gpu_unlinked=["/dev/nvidia0"])
    links, _, _, gpu = gpu_findings("agent a1", troubled)
    assert (links.check, links.ok) == ("agent a1: GPU devices", False)
    assert links.found == "/dev/nvidia0: lost to running containers at a `systemctl daemon-reload`"
    assert (gpu.check, gpu.ok, gpu.found) == ("agent a1: GPU 0", False, "the driver asks for: reset of the GPU")


def test_a_gpu_that_is_missing_is_a_finding_and_one_that_was_accepted_is_none(store, tmp_path):
    write_settings(tmp_path, {})
    settings = load_settings()
    before = make_agent("a1", gpus=2, units_per_gpu=2)
    lost = before.report.model_copy(update={"gpus": before.report.gpus[:1], "gpu_health": before.report.gpu_health[:1]})

    def sick(answer, known):
        findings = _agent(answer, settings, is_alone=True, before=known)
        return [(finding.check, finding.ok) for finding in findings if finding.check.startswith("agent a1: GPU ")]

    answer = AgentAnswer("a1", report=lost, inventory=before.inventory)
    assert sick(answer, _known_agents(settings).get("a1")) == []
    store.agents.save([before])
    assert sick(answer, _known_agents(settings).get("a1")) == [("agent a1: GPU 1", False)]
    missing = reported_again(before, "a1", lost, before.inventory, 1.0)
    uuid = before.gpus[1].uuid
    marks = tuple(symptom.mark for symptom in missing.gpu_record.unaccepted(uuid, {}))
    accepted = replace(missing, gpu_accepted={uuid: marks})
    assert sick(answer, accepted) == []


BY_HOOK = "by the container toolkit's hook"


@pytest.mark.parametrize(
    ("wish", "offered", "ok", "found"),
    [
        ("auto", None, True, BY_HOOK),
        ("nvidia", ["GPU-a1-0"], True, BY_HOOK),
        ("auto", ["GPU-a1-0"], True, "by CDI"),
        ("cdi", ["GPU-a1-0"], True, "by CDI"),
        ("auto", [], False, "GPU-a1-0: not in /etc/cdi/muster.json"),
        ("cdi", None, False, "GPU-a1-0: not in /etc/cdi/muster.json"),
    ],
)
def test_gpus_that_the_engine_does_not_give_as_the_site_wants_it_are_a_finding(wish, offered, ok, found):
    agent = reporting(make_agent("a1", gpus=1, fgpu_devices=wish), gpu_cdi=offered)
    (way,) = (
        finding for finding in gpu_findings("agent a1", agent) if finding.check == "agent a1: GPUs for containers"
    )
    assert way.ok is ok
    assert way.found.startswith(found)


def test_whose_keys_an_agent_refuses_is_said():
    """Ansible may have reached it with another user's keys, and all looked well."""
    refused = AgentAnswer("a1", problem="unreachable: admin@a1: Permission denied (publickey,password).")
    finding = unreachable_finding("agent a1", refused)
    assert (finding.ok, finding.found) == (False, refused.problem)
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert finding.remedy.startswith(f"the keys of {user} on this machine are not accepted: give it one that is")
    gone = unreachable_finding("agent a1", AgentAnswer("a1", problem="unreachable: Connection refused"))
    assert gone.remedy == "mend it, then run `muster pass`"


def test_what_is_wrong_with_the_settings_as_a_whole_has_its_own_remedy(tmp_path, monkeypatch):
    file = tmp_path / "other.yml"
    monkeypatch.setenv("MUSTER_CONFIG", str(file))
    run_site = "run playbooks/site.yml"
    assert muster("doctor").out == (
        f"FAIL  settings: {file} does not exist\n      {run_site}, or name another with MUSTER_CONFIG\n"
    )
    file.write_text("cluster: 1\nlost_after_s: soon\n")
    said = muster("doctor").out
    assert all(field in said for field in ("cluster: ", "lost_after_s: "))
    assert said.endswith(f"\n      mend the file, or {run_site}\n")

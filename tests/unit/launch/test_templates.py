"""The files that the control node writes for a kernel."""

from dataclasses import replace

import jinja2
import pytest

from muster.ansible_gateway.templates import Templates
from muster.contract.manifest import LaunchedSession
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.keys import make_key_pair
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on

POLICY = LaunchPolicy()
NAMES = ("authorized_keys", "known_hosts", "ssh_config", "sshd_config", "hostfile", "hydra_hosts", "hosts")


def files_of(session: Session, templates: Templates, policy: LaunchPolicy = POLICY) -> dict[str, str]:
    keys = {session.id: make_key_pair("muster-train")}
    written = manifest(make_agent(), [session], keys, 8, policy, templates.render)
    (launched,) = written.sessions
    assert isinstance(launched, LaunchedSession)
    return {name: file.content for name, file in {**launched.files, **launched.kernels[0].files}.items()}


@pytest.fixture
def session() -> Session:
    made = make_session(cluster_size=2, gpu=2, ssh_keys=["ssh-ed25519 AAAA me@laptop", "ssh-rsa BBBB other"])
    return replace(placed_on(made, "a1", state=SessionState.PREPARING), step=LaunchStep.STARTING)


def test_the_files_let_every_kernel_into_every_other_without_a_question(session):
    files = files_of(session, Templates())
    public = files["id_ed25519.pub"].strip()
    assert files["authorized_keys"].splitlines() == [public, "ssh-ed25519 AAAA me@laptop", "ssh-rsa BBBB other"]
    hosts = ("[main1]:2200", "main1", "[sub1]:2200", "sub1")
    assert files["known_hosts"].splitlines() == [f"{host} {public}" for host in hosts]
    assert "Host main1 sub1\n" in files["ssh_config"]
    assert files["hostfile"].splitlines() == ["main1 slots=2", "sub1 slots=2"]
    assert files["hydra_hosts"].splitlines() == ["main1:2", "sub1:2"]
    assert files["hosts"].splitlines() == ["main1", "sub1"]
    assert files["id_ed25519"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert all(text.endswith("\n") for text in files.values())


@pytest.mark.parametrize(
    ("resources", "slots"),
    [({"cpu": 4}, 4), ({"cpu": 0.5}, 1), ({"cpu": 4, "fgpu": 0.5}, 1), ({"cpu": 4, "gpu": 2}, 2)],
)
def test_mpi_starts_a_process_for_each_gpu_or_else_for_each_core(resources, slots):
    made = replace(placed_on(make_session(**resources), "a1", state=SessionState.PREPARING), step=LaunchStep.STARTING)
    files = files_of(made, Templates())
    assert (files["hostfile"], files["hydra_hosts"]) == (f"main1 slots={slots}\n", f"main1:{slots}\n")


@pytest.mark.parametrize(
    ("policy", "publish", "ports"),
    [
        (POLICY, (), "22\n"),
        (POLICY, ("shell=22",), None),
        (POLICY, ("web=80",), "22\n"),
        (LaunchPolicy(sshd_port=22), (), None),
    ],
    ids=["usual", "an own server on it", "an own server on another", "the site's port"],
)
def test_sshd_listens_on_its_usual_port_too_unless_that_is_taken(policy, publish, ports):
    made = placed_on(make_session(publish=publish), "a1", state=SessionState.PREPARING)
    files = files_of(replace(made, step=LaunchStep.STARTING), Templates(), policy)
    assert files.get("ssh_ports") == ports


def test_a_private_key_is_not_shown_with_its_pair():
    pair = make_key_pair("x")
    assert "PRIVATE" not in repr(pair)
    assert pair != make_key_pair("x")


@pytest.mark.parametrize("name", NAMES)
def test_a_site_may_replace_each_template_by_itself(tmp_path, session, name):
    (tmp_path / name).write_text("for {{ session.name }}\n", encoding="utf-8")
    own, site = files_of(session, Templates()), files_of(session, Templates(tmp_path))
    assert site[name] == "for s1\n"
    assert {other for other in NAMES if own[other].count("\n") != site[other].count("\n")} <= {name}


def test_a_variable_that_does_not_exist_is_an_error(tmp_path):
    (tmp_path / "hostfile").write_text("{{ nosuch }}", encoding="utf-8")
    with pytest.raises(jinja2.UndefinedError):
        Templates(tmp_path).render("hostfile", {})

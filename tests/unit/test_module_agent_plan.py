"""What an agent decides to do, from what it has and what it should have."""

import pytest

from tests.modules.agent_code import agent_manifest, agent_names, agent_plan

ONE, TWO = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"


def _session(session_id=ONE, desired="launch", generation="1", kernels=("main1", "sub1"), driver="bridge"):
    return agent_manifest.Session(
        id=session_id,
        name="s",
        generation=generation,
        desired=desired,
        network={"name": agent_names.network_name(session_id), "driver": driver},
        kernels=[agent_manifest.Kernel(f"{session_id}-{name}", name, {}) for name in kernels],
    )


def _container(name="main1", session_id=ONE, generation="1", state="running"):
    return agent_names.SeenContainer(
        id=f"id-{name}",
        name=agent_names.container_name(session_id, name),
        session_id=session_id,
        kernel_id=f"{session_id}-{name}",
        kernel_name=name,
        generation=generation,
        state=state,
    )


def _network(session_id=ONE, generation="1", driver="bridge", swarm_node=""):
    name = agent_names.network_name(session_id)
    return agent_names.SeenNetwork(f"id-{name}", name, session_id, generation, driver, swarm_node)


def _plan(*sessions, containers=(), networks=(), keys=None, spools=(), swarm_node=""):
    manifest = agent_manifest.Manifest("c", 1, "/rt", 2200, "/f", 60, 10, 1000, list(sessions))
    observed = agent_plan.Observed(list(containers), list(networks), keys or {}, set(spools), swarm_node)
    return agent_plan.plan_for(manifest, observed)


def _names(kernels):
    return [kernel.name for kernel in kernels]


def test_on_an_empty_host_all_is_missing():
    (launch,) = _plan(_session()).launches
    assert _names(launch.missing) == ["main1", "sub1"]
    assert launch.network_missing


def test_what_runs_already_is_not_missing():
    (launch,) = _plan(_session(), containers=[_container()], networks=[_network()]).launches
    assert _names(launch.missing) == ["sub1"]
    assert not launch.network_missing


@pytest.mark.parametrize("state", ["created", "dead", "removing"])
def test_a_container_that_never_ran_is_made_anew(state):
    container = _container(state=state)
    plan = _plan(_session(), containers=[container])
    assert plan.discarded_containers == [container]
    assert _names(plan.launches[0].missing) == ["main1", "sub1"]


def test_a_launch_of_another_generation_goes_with_its_network():
    plan = _plan(_session(generation="2"), containers=[_container()], networks=[_network()])
    assert plan.discarded_containers == [_container()]
    assert plan.discarded_networks == [_network()]
    assert plan.launches[0].network_missing


def test_keep_leaves_any_state_and_any_generation():
    containers = [_container(state="created", generation="0"), _container("sub1", state="exited")]
    plan = _plan(_session(desired="keep"), containers=containers, networks=[_network()])
    assert plan == agent_plan.Plan([], [], [], [], [], [])


def test_stop_takes_all_of_the_session_named_or_not():
    containers = [_container(), _container("sub9", generation="0")]
    plan = _plan(_session(desired="stop"), containers=containers, networks=[_network()], keys={ONE: {"main1"}})
    (stop,) = plan.stops
    assert (stop.containers, stop.networks) == (containers, [_network()])
    assert plan.discarded_containers == []


def test_what_the_manifest_does_not_name_is_discarded():
    strangers = [_container(session_id=TWO), _container("sub9")]
    plan = _plan(
        _session(desired="keep"),
        containers=[_container(), *strangers],
        networks=[_network(), _network(TWO)],
        keys={ONE: {"main1", "sub9"}, TWO: {"main1"}},
        spools=[ONE, TWO],
    )
    assert plan.discarded_containers == strangers
    assert plan.discarded_networks == [_network(TWO)]
    assert plan.discarded_keys == [(ONE, "sub9"), (TWO, "")]
    assert plan.discarded_spools == [ONE, TWO]


def test_the_last_words_of_a_stopped_session_stay():
    assert _plan(_session(desired="stop"), spools=[ONE]).discarded_spools == []


def test_an_overlay_is_a_leftover_only_for_the_manager_that_made_it():
    overlay = _network(TWO, driver="overlay", swarm_node="a")
    assert _plan(networks=[overlay], swarm_node="a").discarded_networks == [overlay]
    assert _plan(networks=[overlay], swarm_node="b").discarded_networks == []


def test_an_overlay_of_an_earlier_launch_is_used_again():
    overlay = _network(driver="overlay")
    plan = _plan(_session(generation="2", driver="overlay"), networks=[overlay], swarm_node="a")
    assert plan.discarded_networks == []
    assert not plan.launches[0].network_missing


@pytest.mark.parametrize(("swarm_node", "missing"), [("a", True), ("", False)])
def test_an_overlay_is_made_by_a_manager(swarm_node, missing):
    assert _plan(_session(driver="overlay"), swarm_node=swarm_node).launches[0].network_missing is missing


def test_a_launch_that_failed_leaves_no_difference():
    plan = _plan(_session())
    observed = agent_plan.Observed([], [], {}, set(), "")
    differences = agent_plan.differences_of(plan, observed)
    assert differences.changed
    agent_plan.retract_launch(differences, plan.launches[0])
    assert not differences.changed

"""What an agent decides to do, from what it has and what it should have."""

import pytest

from tests.modules.agent_code import agent_manifest, agent_names, agent_plan, plan_differences

ONE, TWO, THREE = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "123")


def _session(
    session_id=ONE, desired="launch", generation="1", kernels=("main1", "sub1"), driver="bridge", *, release=True
):
    return agent_manifest.Session(
        id=session_id,
        name="s",
        generation=generation,
        desired=desired,
        release=release,
        network={"name": agent_names.network_name(session_id), "driver": driver},
        kernels=[
            agent_manifest.Kernel(f"{session_id}-{name}", name, {"resources": {}, "gpus": []}) for name in kernels
        ],
    )


def _container(name="main1", session_id=ONE, generation="1", state="running", *, cut_off=False):
    return agent_names.SeenContainer(
        id=f"id-{name}",
        name=agent_names.container_name(session_id, name),
        session_id=session_id,
        kernel_id=f"{session_id}-{name}",
        kernel_name=name,
        generation=generation,
        state=state,
        networks=frozenset(() if cut_off else [agent_names.network_name(session_id)]),
    )


def _network(session_id=ONE, generation="1", driver="bridge"):
    name = agent_names.network_name(session_id)
    return agent_names.SeenNetwork(f"id-{name}", name, session_id, generation, driver)


def _overlay(session_id=ONE, generation="1"):
    return agent_manifest.Overlay(session_id, agent_names.network_name(session_id), generation, None, False)


def _lent(number):
    name = f"muster-lent-{number:012x}"
    return agent_names.SeenNetwork(f"id-{name}", name, "", "", "bridge")


def _observed(
    *, containers=(), networks=(), keys=None, spools=(), is_manager=False, overlay_obstacle="", spare=(), left=()
):
    seen = [*networks, *spare, *left]
    names, left_names = ([network.name for network in lent] for lent in (spare, left))
    return agent_plan.Observed(
        list(containers), seen, keys or {}, set(spools), is_manager, overlay_obstacle, names, left_names
    )


def _manifest(*sessions, overlays=None, generation=1, kept_spools=()):
    kept = frozenset(kept_spools)
    return agent_manifest.Manifest(
        "c", generation, [], "/rt", 2200, "/f", None, 60, 10, 1000, overlays, list(sessions), kept
    )


def _plan(*sessions, overlays=None, generation=1, kept_spools=(), **observed):
    manifest = _manifest(*sessions, overlays=overlays, generation=generation, kept_spools=kept_spools)
    return agent_plan.plan_for(manifest, _observed(**observed))


def _names(kernels):
    return [kernel.name for kernel in kernels]


def test_on_an_empty_host_all_is_missing():
    (launch,) = _plan(_session()).launches
    assert _names(launch.missing) == ["main1", "sub1"]
    assert launch.network_missing


def test_a_running_kernel_is_not_missing():
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
    assert all(steps == [] for steps in plan)


def test_stop_takes_all_of_the_session_named_or_not():
    containers = [_container(), _container("sub9", generation="0")]
    plan = _plan(_session(desired="stop"), containers=containers, networks=[_network()], keys={ONE: {"main1": "1"}})
    (stop,) = plan.stops
    assert (stop.containers, stop.networks) == (containers, [_network()])
    assert plan.discarded_containers == []


def test_containers_outside_of_the_manifest_are_discarded():
    strangers = [_container(session_id=TWO), _container("sub9")]
    plan = _plan(
        _session(desired="keep"),
        containers=[_container(), *strangers],
        networks=[_network(), _network(TWO)],
        keys={ONE: {"main1": "1", "sub9": ""}, TWO: {"main1": ""}, THREE: {}},
        spools=[ONE, TWO],
    )
    assert plan.discarded_containers == strangers
    assert plan.discarded_networks == [_network(TWO)]
    assert plan.discarded_keys == [(ONE, "sub9"), (TWO, ""), (THREE, "")]
    assert plan.discarded_spools == [ONE, TWO]


def test_the_last_words_of_a_stopped_session_stay():
    assert _plan(_session(desired="stop"), spools=[ONE]).discarded_spools == []


def test_the_last_words_that_a_later_visit_fetches_stay():
    assert _plan(spools=[ONE, TWO], kept_spools=[TWO]).discarded_spools == [ONE]
    assert _plan(_session(desired="launch"), spools=[ONE], kept_spools=[ONE]).discarded_spools == [ONE]


def test_the_keeper_makes_missing_overlays_and_discards_the_others():
    overlay = _network(TWO, driver="overlay")
    plan = _plan(overlays=[_overlay(ONE)], networks=[overlay], is_manager=True)
    assert (plan.missing_overlays, plan.discarded_overlays) == ([_overlay(ONE)], [overlay])
    plan = _plan(overlays=[_overlay(TWO)], networks=[overlay], is_manager=True)
    assert (plan.missing_overlays, plan.discarded_overlays) == ([], [])


@pytest.mark.parametrize(("overlays", "is_manager"), [(None, True), ([_overlay(ONE)], False)])
def test_nobody_else_touches_overlays(overlays, is_manager):
    networks = [_network(TWO, driver="overlay")]
    stop = _session(TWO, desired="stop", driver="overlay")
    plan = _plan(stop, overlays=overlays, networks=networks, is_manager=is_manager)
    assert (plan.missing_overlays, plan.discarded_overlays, plan.discarded_networks) == ([], [], [])
    assert plan.stops[0].networks == []


@pytest.mark.parametrize(("generation", "discarded"), [("4", True), ("5", True), ("6", False), ("", True)])
def test_an_overlay_newer_than_the_manifest_is_another_keepers(generation, discarded):
    overlay = _network(TWO, generation, driver="overlay")
    plan = _plan(overlays=[], generation=5, networks=[overlay], is_manager=True)
    assert plan.discarded_overlays == ([overlay] if discarded else [])


def test_a_launch_into_an_overlay_makes_no_network():
    plan = _plan(_session(driver="overlay"), is_manager=True)
    assert not plan.launches[0].network_missing


def test_an_obstacle_delays_only_launches_on_an_overlay():
    on_bridge = _session(TWO)
    plan = _plan(_session(driver="overlay"), on_bridge, overlay_obstacle="none here")
    assert [launch.obstacle for launch in plan.launches] == ["none here", ""]
    containers = [_container(), _container("sub1")]
    assert not _plan(_session(driver="overlay"), containers=containers, overlay_obstacle="x").launches[0].obstacle


def test_a_release_waits_for_kernels_that_were_not_released_in_this_launch():
    containers = [_container(), _container("sub1"), _container("sub2", generation="0")]
    keys = {ONE: {"main1": "1", "sub1": "0", "sub2": ""}}
    session = _session(desired="release", kernels=("main1", "sub1", "sub2", "sub3"))
    (release,) = _plan(session, containers=containers, keys=keys).releases
    assert [(kernel.name, seen) for kernel, seen in release.waiting] == [
        ("sub1", containers[1]),
        ("sub2", None),
        ("sub3", None),
    ]


def test_a_release_discards_nothing_that_its_session_names():
    containers = [_container(state="created"), _container("sub1", generation="0")]
    plan = _plan(_session(desired="release"), containers=containers, networks=[_network()])
    assert (plan.discarded_containers, plan.discarded_networks) == ([], [])


@pytest.mark.parametrize("release", [True, False])
def test_a_launch_that_failed_leaves_no_difference(release):
    plan = _plan(_session(release=release))
    differences = plan_differences.differences_of(plan, _observed())
    assert differences.changed
    plan_differences.retract_launch(differences, plan.launches[0])
    assert not differences.changed


def test_a_release_that_failed_leaves_no_difference():
    containers = [_container(), _container("sub1")]
    keys = {ONE: {"main1": "", "sub1": "0"}}
    plan = _plan(_session(desired="release"), containers=containers, keys=keys)
    differences = plan_differences.differences_of(plan, _observed(containers=containers, keys=keys))
    assert sorted(change[2:] for change in differences.changes) == [
        ("absent", "generation 1"),
        ("generation 0", "generation 1"),
    ]
    plan_differences.retract_release(differences, plan.releases[0])
    assert not differences.changed


@pytest.mark.parametrize("driver", ["bridge", "overlay"])
def test_running_kernels_that_were_cut_off_their_network_are_put_back(driver):
    both = [_container("sub1", cut_off=True), _container(cut_off=True)]
    (repair,) = _plan(_session(desired="keep", driver=driver), containers=both).repairs
    assert [seen.kernel_name for seen in repair.cut_off] == ["main1", "sub1"]
    assert repair.network_missing is (driver == "bridge")


def test_a_network_that_is_there_is_not_made_again():
    one = [_container("sub1", cut_off=True), _container()]
    (repair,) = _plan(_session(desired="keep"), containers=one, networks=[_network()]).repairs
    assert [seen.kernel_name for seen in repair.cut_off] == ["sub1"]
    assert not repair.network_missing


@pytest.mark.parametrize(
    ("desired", "container"),
    [
        ("keep", _container()),
        ("keep", _container(state="exited", cut_off=True)),
        ("keep", _container(state="paused", cut_off=True)),
        ("keep", _container(generation="0", cut_off=True)),
        ("stop", _container(cut_off=True)),
        ("release", _container(cut_off=True)),
        ("launch", _container(cut_off=True)),
    ],
)
def test_nothing_else_is_put_back_on_a_network(desired, container):
    assert _plan(_session(desired=desired), containers=[container], networks=[_network()]).repairs == []


def _single(session_id=ONE, desired="launch"):
    return _session(session_id, desired, kernels=("main1",))


def _on(network, session_id=ONE):
    return _container(session_id=session_id)._replace(networks=frozenset({network.name}))


def test_single_kernels_are_lent_a_spare_network_each_and_then_new_ones():
    launches = _plan(_single(ONE), _single(TWO), spare=[_lent(1)]).launches
    first, second = (launch.session.network["name"] for launch in launches)
    assert (first, agent_names.is_lent(second)) == (_lent(1).name, True)
    assert first != second
    assert [launch.network_missing for launch in launches] == [False, True]


def test_a_new_lent_network_never_has_the_name_of_one_that_is_there():
    (launch,) = _plan(_single()).launches
    made = agent_names.SeenNetwork("id", launch.session.network["name"], "", "", "bridge")
    (again,) = _plan(_single(), networks=[made], containers=[_on(made, TWO)]).launches
    assert again.network_missing
    assert again.session.network["name"] != made.name


def test_a_single_kernel_stays_on_the_network_that_it_was_lent():
    (launch,) = _plan(_single(), containers=[_on(_lent(3))], networks=[_lent(3)], spare=[_lent(1)]).launches
    assert (launch.session.network["name"], launch.missing) == (_lent(3).name, [])
    assert _plan(_single(desired="keep"), containers=[_on(_lent(3))], networks=[_lent(3)]).repairs == []


def test_a_single_kernel_that_was_cut_off_is_lent_another_network():
    cut_off = _container(cut_off=True)
    (repair,) = _plan(_single(desired="keep"), containers=[cut_off], spare=[_lent(1)]).repairs
    assert (repair.session.network["name"], repair.network_missing) == (_lent(1).name, False)
    (repair,) = _plan(_single(desired="keep"), containers=[cut_off]).repairs
    assert agent_names.is_lent(repair.session.network["name"])
    assert repair.network_missing


def test_a_network_is_lent_on_when_its_session_has_ended_and_only_a_few_stay_spare():
    spare = [_lent(number) for number in range(20)]
    plan = _plan(_single(), spare=spare, containers=[_on(_lent(99), TWO)], networks=[_lent(99)])
    assert plan.discarded_networks == spare[17:]
    assert plan.spare_networks == [network.name for network in spare[1:17]]
    (stop,) = _plan(_single(desired="stop"), containers=[_on(_lent(99))], networks=[_lent(99)]).stops
    assert stop.networks == []


def test_a_network_is_lent_on_by_the_visit_that_removes_what_has_ended_on_it():
    ended = _on(_lent(1))._replace(state="exited")
    manifest = _manifest(_single(ONE, "stop"), _single(TWO), _single(THREE))
    found = agent_plan.lent_on(manifest, [ended], [_lent(1), _lent(2), _network(TWO)])
    assert found == ([_lent(2).name], [_lent(1).name])
    plan = agent_plan.plan_for(manifest, _observed(containers=[ended], spare=[_lent(2)], left=[_lent(1)]))
    assert [launch.session.network["name"] for launch in plan.launches] == [_lent(2).name, _lent(1).name]
    assert not any(launch.network_missing for launch in plan.launches)
    assert (plan.spare_networks, plan.discarded_networks) == ([], [])


@pytest.mark.parametrize(
    ("desired", "state", "lent_on"),
    [
        ("stop", "exited", True),
        (None, "exited", True),
        ("launch", "exited", False),  # it ended before its release: its session's alone
        ("keep", "exited", False),
        ("stop", "running", False),
        (None, "running", False),
        ("stop", "dead", False),  # its removal failed
        ("stop", "created", False),  # perhaps a start is under way
    ],
)
def test_a_network_is_lent_on_only_if_what_is_on_it_has_ended_and_goes(desired, state, lent_on):
    manifest = _manifest(_single(TWO), *([_single(ONE, desired)] if desired else []))
    seen = _on(_lent(1))._replace(state=state)
    assert agent_plan.lent_on(manifest, [seen], [_lent(1)]) == ([], [_lent(1).name] if lent_on else [])
    other = _on(_lent(1), THREE)
    assert agent_plan.lent_on(_manifest(_single(THREE, "keep"), *manifest.sessions), [seen, other], [_lent(1)])[1] == []


def test_gangs_and_kernels_on_overlays_are_lent_nothing():
    sessions = (_session(ONE), _session(TWO, kernels=("main1",), driver="overlay", release=False))
    plan = _plan(*sessions, spare=[_lent(1)])
    assert [launch.session.network["name"] for launch in plan.launches] == [
        agent_names.network_name(ONE),
        agent_names.network_name(TWO),
    ]

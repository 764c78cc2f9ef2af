"""A run that is killed at any point, and its second try."""

import subprocess

import pytest

from tests.modules.agent_code import account_files, removal
from tests.modules.cluster_on_host import IMAGE, USER, desired, killed_when, log_of, log_with, session

POINTS_OF_A_LAUNCH = {
    "a key directory is there": lambda cluster: cluster.key_directories() != [],
    "the network is there": lambda cluster: cluster.networks() != [],
    "all containers are made": lambda cluster: len(cluster.states()) == 2,
    "a container runs": lambda cluster: "running" in cluster.states().values(),
    "all containers run": lambda cluster: list(cluster.states().values()) == ["running"] * 2,
}


@pytest.mark.parametrize("point", POINTS_OF_A_LAUNCH)
def test_a_launch_killed_when(cluster, point):
    gang = session(["main1", "sub1"])
    # So that the interruption does not hit the probe of a new image.
    image = cluster.engine.image(gang["kernels"][0]["image"])
    cluster.paths.state.mkdir(parents=True)
    account_files.image_facts(cluster.engine, cluster.name, image["Id"], USER["home"], set())
    assert killed_when(lambda: POINTS_OF_A_LAUNCH[point](cluster), cluster.manifest(gang))
    result = cluster.converge(gang)
    assert [entry["error"] for entry in result["sessions"]] == [None]
    assert list(cluster.states().values()) == ["running"] * 2
    assert cluster.run_in(gang, "main1", "ssh", "sub1", "id -un") == "work"
    assert not cluster.converge(gang)["changed"]


def test_a_probe_of_an_image_that_was_killed_leaves_nothing(cluster):
    gang = session()
    assert killed_when(lambda: cluster.states() != {}, cluster.manifest(gang))
    cluster.converge()
    assert cluster.leaves_nothing()


@pytest.fixture
def labelled_image():
    """Return a function that makes an image with labels."""
    made = []

    def make(**labels):
        lines = [f"FROM {IMAGE}", *(f"LABEL muster.{name.replace('_', '-')}={value}" for name, value in labels.items())]
        made.append(f"{IMAGE}-labelled")
        build = ["docker", "build", "--quiet", "--tag", made[-1], "-"]
        subprocess.run(build, input="\n".join(lines), text=True, check=True, capture_output=True)
        return made[-1]

    yield make
    for image in made:
        subprocess.run(["docker", "rmi", "--force", image], check=True, capture_output=True)


@pytest.mark.parametrize("gpus", ["[]", "none"])
def test_a_killed_probe_of_an_image_with_labels_of_ours_is_taken_for_nothing_else(cluster, labelled_image, gpus):
    """Its maker wants it to be taken for another session's kernel, or for one that no report can be made of."""
    victim = session()
    cluster.converge(victim)
    (name,) = cluster.containers()
    image = labelled_image(
        session=victim["id"], kernel=victim["id"], kernel_name="main1", generation=1, gpus=gpus, apps=gpus, disk=1
    )
    kept = desired(victim, "keep")
    assert killed_when(lambda: len(cluster.states()) == 2, cluster.manifest(kept, session(image=image)))
    kernels = cluster.report()["kernels"]
    assert [(kernel["session_id"], kernel["state"]) for kernel in kernels] == [(victim["id"], "running")]
    result = cluster.converge(kept)
    assert [entry["error"] for entry in result["sessions"]] == [None]
    assert cluster.states() == {name: "running"}


def test_files_whose_containers_a_killed_run_had_removed_are_named_until_a_run_removes_them(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    assert cluster.report()["files"] == [gang["id"]]
    for container in cluster.containers().values():
        removal.remove_container(cluster.engine, container["Id"])
    report = cluster.report()
    assert (report["kernels"], report["files"]) == ([], [gang["id"]])
    assert cluster.converge()["report"]["files"] == []
    assert cluster.leaves_nothing()
    assert not cluster.paths.kernel_keys(gang["id"], "main1").parent.exists()


POINTS_OF_A_STOP = {
    "a container has ended": lambda cluster: "exited" in cluster.states().values(),
    "a container is gone": lambda cluster: len(cluster.states()) < 2,
    "the containers are gone": lambda cluster: not cluster.states(),
}


@pytest.mark.parametrize("point", POINTS_OF_A_STOP)
def test_a_stop_killed_when(cluster, point):
    gang = session(["main1", "sub1"], command=["sh", "-c", "echo said; exec sleep 1000"])
    cluster.converge(gang)
    for entry in cluster.containers().values():
        log_with(cluster, entry["Id"], b"said")
    stopping = desired(gang, "stop")
    assert killed_when(lambda: POINTS_OF_A_STOP[point](cluster), cluster.manifest(stopping))
    result = cluster.converge(stopping)
    assert [entry["error"] for entry in result["sessions"]] == [None]
    assert [(words["name"], log_of(words)) for words in result["last_words"]] == [
        ("main1", "said\n"),
        ("sub1", "said\n"),
    ]
    assert (cluster.containers(), cluster.networks(), cluster.key_directories()) == ({}, [], [])
    assert not cluster.converge(stopping)["changed"]

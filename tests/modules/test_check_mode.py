"""Check mode changes nothing, and foretells what the run then does."""

from tests.modules.cluster_on_host import desired, session


def test_check_mode_foretells_each_step(cluster):
    gang = session(["main1", "sub1"])
    for manifest in ([gang], [desired(gang, "stop")], []):
        before = (cluster.containers(), cluster.networks(), cluster.key_directories(), cluster.report()["generation"])
        foreseen = cluster.converge(*manifest, check=True)
        after = (cluster.containers(), cluster.networks(), cluster.key_directories(), cluster.report()["generation"])
        assert _without_status(after) == _without_status(before)
        done = cluster.converge(*manifest)
        assert foreseen["changed"]
        assert foreseen["changed"] == done["changed"]
        assert foreseen["diff"] == done["diff"]
        assert foreseen["sessions"] == done["sessions"]
        again = cluster.converge(*manifest, check=True)
        assert not again["changed"]


def test_check_mode_sees_a_folder_that_is_missing(cluster):
    gang = session(mounts=[{"folder": "none", "target": "/data", "read_only": True}])
    foreseen, done = cluster.converge(gang, check=True), cluster.converge(gang)
    assert foreseen["sessions"] == done["sessions"]
    assert foreseen["sessions"][0]["outcome"] == "failed"
    assert not foreseen["changed"]
    assert not done["changed"]


def _without_status(seen):
    """Return the container without `Status`, which says for how long it is up."""
    containers, *others = seen
    return [{name: entry["State"] for name, entry in containers.items()}, *others]

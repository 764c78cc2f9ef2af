"""A control node is lost while sessions run: a fresh one with the backup adopts them."""

from tests.control_node import SMALL, UNTIL_ENDED, ControlNode


def test_a_fresh_control_node_with_the_backup_adopts_what_runs(new_node, tmp_path_factory):
    lost = new_node()
    lost.start_daemon()
    gang = lost.start("--name", "gang", "--cluster-size", "2")
    lost.start("--name", "batch", "-c", f"{UNTIL_ENDED}; echo done")
    lost.submit(*SMALL, "--name", "waits", "--begin", "now+1s", "--after-ok", "batch")
    lost.submit(*SMALL, "--name", "begun", "--cluster-size", "2", "--hold")
    lost.run("secret", "set", "key", stdin="s3cret")
    file = tmp_path_factory.mktemp("backup") / "muster.tar.gz"
    # While the daemon works the queue.
    taken = lost.run("backup", str(file), "--json").json()
    assert "secrets.key" in taken["keys"]
    lost.start("--name", "later")
    lost.run("release", "begun")
    begun = lost.reaches("begun", "RUNNING")
    lost.run("restart", "gang")
    lost.reaches("gang", "RUNNING")
    containers = {name: kernels_of(lost, name) for name in ("gang", "batch", "begun")}
    lost.daemon.kill()
    lost.daemon.wait()
    lost.daemon = None

    fresh = ControlNode(tmp_path_factory.mktemp("node") / "fresh", lost.cluster, {"folders_root": str(lost.folders)})
    # Until then its database is new, and what runs is not taken for leftovers.
    fresh.run("pass")
    assert {name: kernels_of(lost, name) for name in containers} == containers
    (agent,) = fresh.run("agents", "--json").json()
    assert agent["problem"].startswith("it has containers that another database launched")
    done = fresh.run("restore", str(file), "--json").json()
    assert (done["sessions"], done["held"]) == (4, 1)
    fresh.start_daemon()
    try:
        # The backup knows nothing of the launches after it; agents do.
        fresh.reaches("begun", "RUNNING")
        adopted = {name: kernels_of(fresh, name) for name in containers}
        assert adopted == containers
        assert {fresh.show(name)["state"] for name in adopted} == {"RUNNING"}
        assert fresh.exec(gang, "ssh", "sub1", "hostname").out == "sub1\n"
        assert fresh.run("ssh", gang, "hostname").out == "main1\n"
        assert fresh.run("ssh", "begun", "hostname").out == "main1\n"
        assert fresh.show("begun")["kernels"] == begun["kernels"]
        assert [secret["name"] for secret in fresh.run("secret", "ls", "--json").json()] == ["key"]
        # A batch that the lost node began ends here, with its log, and what waits for it begins once it is released.
        fresh.end_command("batch")
        assert fresh.reaches("batch", "TERMINATED")["result"] == "SUCCESS"
        assert fresh.run("logs", "batch").out == "done\n"
        assert fresh.show("waits")["held_by"] == "muster restore"
        fresh.run("release", "waits")
        fresh.reaches("waits", "RUNNING")
        # The backup does not know what was submitted after it: that is removed.
        assert {session["name"] for session in fresh.run("ls", "--json").json()} == {"gang", "begun", "waits"}
        known = {container for name in ("gang", "begun", "waits") for container in kernels_of(fresh, name)}
        assert len(fresh.left_on_host()["containers"]) == len(known)
    finally:
        fresh.end_everything()
        fresh.stop_daemon()


def kernels_of(node: ControlNode, name: str) -> list[str]:
    return [kernel["container_id"] for kernel in node.show(name)["kernels"]]

"""A second control node is set up for a host that another one works, under the same name of the cluster."""

from tests.control_node import SMALL, ControlNode


def test_two_control_nodes_on_one_host_end_nothing_of_each_others(new_node, tmp_path_factory):
    first = new_node()
    second = ControlNode(
        tmp_path_factory.mktemp("node") / "second", first.cluster, {"folders_root": str(first.folders)}
    )
    second.run("pass")
    first.start_daemon()
    name = first.start()
    first.exec(name, "touch", "/tmp/mine")
    waits = second.submit(*SMALL)
    second.run("pass")
    (agent,) = second.run("agents", "--json").json()
    assert agent["problem"].startswith(
        f"it has containers that another database launched ({first.show(name)['id'][:8]}): see `database`"
    )
    assert "another database launched" in second.run("why", waits).out
    first.run("pass", "--wait")
    assert first.exec(name, "ls", "/tmp/mine").out == "/tmp/mine\n"
    first.run("terminate", name)
    first.reaches(name, "TERMINATED")
    second.run("pass")
    assert second.show(waits)["state"] == "RUNNING"
    late = first.submit(*SMALL)
    first.run("pass", "--wait")
    assert "another control node or database runs sessions" in first.run("why", late).out
    first.run("pass", "--wait")
    (agent,) = first.run("agents", "--json").json()
    assert agent["problem"].startswith("it has containers that another database launched")
    assert second.show(waits)["state"] == "RUNNING"
    second.end_everything()

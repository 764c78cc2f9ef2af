"""An administrator gives a host another name in the inventory, or the cluster another, while a session runs."""

from tests.control_node import SMALL, ControlNode


def rename(node: ControlNode, before: str, after: str) -> None:
    inventory = node.directory / "inventory.yml"
    inventory.write_text(inventory.read_text().replace(f"{before}:", f"{after}:"))
    node.run("pass", "--wait")


def test_what_runs_on_a_host_outlasts_another_name_of_it(new_node):
    node = new_node()
    node.start_daemon()
    name = node.start()
    node.exec(name, "touch", "/tmp/mine")
    rename(node, "localhost", "node-01.example.org")
    agents = {agent["id"]: agent for agent in node.run("agents", "--json").json()}
    assert agents["node-01.example.org"]["problem"].startswith(
        f"its host runs sessions that were placed on localhost ({node.show(name)['id'][:8]})"
    )
    assert agents["localhost"]["problem"] == "it is no longer in the inventory"
    assert "its host runs sessions" in node.run("why", node.submit("--cpu", "0.1", "--mem", "64M")).out
    rename(node, "node-01.example.org", "localhost")
    assert [(agent["id"], agent["problem"]) for agent in node.run("agents", "--json").json()] == [("localhost", None)]
    assert node.exec(name, "ls", "/tmp/mine").out == "/tmp/mine\n"


def test_a_cluster_of_another_name_ends_nothing(new_node):
    node = new_node()
    node.run("pass")
    name = node.submit(*SMALL)
    node.run("pass", "--wait")
    settings = node.config.read_text()
    node.config.write_text(settings.replace(f"cluster: {node.cluster}", "cluster: another"))
    for command in (("pass",), ("daemon",)):
        refused = node.run(*command, check=False)
        assert (refused.code, "cluster: 1 session runs under another name" in refused.err) == (2, True)
    findings = {finding["check"]: finding for finding in node.run("doctor", "--json", check=False).json()}
    assert findings["cluster"]["remedy"] == "put the former name back, or end all sessions under it first"
    node.config.write_text(settings)
    node.run("pass", "--wait")
    assert node.exec(name, "hostname").out == "main1\n"

"""What tests of agents that go away do, and look at."""

from tests.simulated.control_node import LOST_AFTER_S


def gang(node, size=4, **values):
    return node.submit(cluster_size=size, cluster_mode="multi-node", **values)


def known(node, agent_id):
    return next(agent for agent in node.store.snapshot(node.now).agents if agent.id == agent_id)


def goes_away_when(node, agent, session, desired):
    """Cut the agent off in the visit whose manifest has this for the session."""

    def meanwhile():
        for entry in node.gateway.manifests[-1].get(agent.id, {"sessions": ()})["sessions"]:
            if (entry["id"], entry["desired"]) == (session.id, desired):
                agent.reachable = False

    node.gateway.meanwhile = meanwhile


def is_lost(node):
    """Let time pass until the silent agent is LOST, and that was observed."""
    node.run()
    node.now += LOST_AFTER_S
    node.run()


def nothing_is_left_of(session, node, agents):
    return not node.gateway.overlays and not any(agent.of_session(session.id) for agent in agents)

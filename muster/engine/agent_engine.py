"""An agent's Docker engine, reached from the control node by the Docker SDK."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import docker
from docker.errors import APIError, DockerException
from docker.models.containers import Container

from muster.core.agent import Agent
from muster.core.errors import AgentUnreachableError, NotPossibleInStateError
from muster.core.session import Kernel

LOCAL_SOCKET = "unix:///var/run/docker.sock"


def engine_url(agent: Agent) -> str:
    attributes = agent.report["attributes"]
    if attributes["connection"] == "local":
        return LOCAL_SOCKET
    return f"ssh://{attributes['user']}@{attributes['address']}:{attributes['port']}"


@contextmanager
def engine_of(agent: Agent) -> Iterator[docker.DockerClient]:
    """Raises AgentUnreachableError."""
    url = engine_url(agent)
    try:
        client = docker.DockerClient(base_url=url, use_ssh_client=url.startswith("ssh://"))
    except (DockerException, OSError) as error:
        raise AgentUnreachableError(f"the engine of agent {agent.id} ({url}) does not answer: {error}") from None
    try:
        yield client
    finally:
        client.close()


@contextmanager
def container_of(agent: Agent, kernel: Kernel) -> Iterator[Container]:
    """Raises NotPossibleInStateError when the kernel has no container there."""
    with engine_of(agent) as client:
        try:
            container = client.containers.get(kernel.container_id or f"none-of-{kernel.id}")
        except APIError as error:
            if error.status_code == 404:
                raise NotPossibleInStateError(f"{kernel.name} has no container on agent {agent.id}") from None
            raise AgentUnreachableError(f"agent {agent.id}: {error.explanation}") from None
        yield container


def watch_deaths(agent: Agent, cluster: str, died: Callable[[str], None]) -> None:
    """Calls `died(session_id)` for each kernel that ends, until the connection does.

    Raises AgentUnreachableError when it ends.
    """
    with engine_of(agent) as client:
        filters = {"type": "container", "event": "die", "label": f"muster.cluster={cluster}"}
        try:
            for event in client.events(decode=True, filters=filters):
                died(event["Actor"]["Attributes"].get("muster.session", ""))
        except (DockerException, OSError) as error:
            raise AgentUnreachableError(f"agent {agent.id}: {error}") from None
    raise AgentUnreachableError(f"agent {agent.id}: its engine closed the event stream")

"""An agent's Docker engine, reached from the control node by the Docker SDK."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container

from muster.contract.values import one_line
from muster.core.agents.agent import Agent
from muster.core.model.session import Kernel
from muster.core.values.errors import AgentUnreachableError, NotPossibleInStateError
from muster.engine.agent_ssh import is_local
from muster.engine.tunnel import ENGINE_SOCKET, EngineTunnel, engine_tunnel

_LOCAL_ENGINE = EngineTunnel(f"unix://{ENGINE_SOCKET}", str)
# The SDK wraps its libraries' errors only here and there.
ENGINE_ERRORS = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError)
# Reading an answer also fails if no Docker engine would give it: a compromised agent may send anything.
MALFORMED_ERRORS = (AttributeError, LookupError, TypeError, ValueError, RecursionError)
ANSWER_ERRORS = (*ENGINE_ERRORS, *MALFORMED_ERRORS)
_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@contextmanager
def engine_of(agent: Agent, *, answer_timeout_s: int = 60) -> Iterator[docker.DockerClient]:
    """Yield a client of the agent's engine; `answer_timeout_s` bounds the silence in an answer.

    Raises AgentUnreachableError.
    """
    with nullcontext(_LOCAL_ENGINE) if is_local(agent) else engine_tunnel(agent) as way:
        try:
            client = docker.DockerClient(base_url=way.url, timeout=answer_timeout_s)
        except ENGINE_ERRORS as error:
            problem = f"its Docker engine does not answer: {cause(error)}{way.complaint()}"
            raise AgentUnreachableError(f"agent {agent.id}: {problem}") from None
        try:
            yield client
        finally:
            client.close()


@contextmanager
def container_of(agent: Agent, kernel: Kernel) -> Iterator[Container]:
    """Raises NotPossibleInStateError when the kernel has no container there, and AgentUnreachableError.

    So do errors of the engine while the container is used.
    """
    with engine_of(agent) as client:
        try:
            yield client.containers.get(kernel.container_id or f"none-of-{kernel.id}")
        except NotFound:
            raise NotPossibleInStateError(f"{kernel.name} has no container on agent {agent.id}") from None
        except ENGINE_ERRORS as error:
            raise AgentUnreachableError(f"agent {agent.id}: {cause(error)}") from None


def watch_deaths(agent: Agent, cluster: str, died: Callable[[str], None]) -> None:
    """Calls `died(session_id)` for each kernel that ends, until the connection does.

    Raises AgentUnreachableError when it ends, which is noticed within some 20 s where the agent vanished.
    """
    with engine_of(agent) as client:
        filters = {"type": "container", "event": "die", "label": f"muster.cluster={cluster}"}
        try:
            for event in client.events(decode=True, filters=filters):
                session_id = _session_of(event)
                if session_id is not None:
                    died(session_id)
        except ENGINE_ERRORS as error:
            raise AgentUnreachableError(f"agent {agent.id}: {cause(error)}") from None
    raise AgentUnreachableError(f"agent {agent.id}: its engine closed the event stream")


def _session_of(event: Any) -> str | None:  # noqa: ANN401 - whatever the engine sent
    try:
        session_id = event["Actor"]["Attributes"]["muster.session"]
        return session_id if _SESSION_ID.fullmatch(session_id) else None
    except MALFORMED_ERRORS:
        return None


def cause(error: BaseException) -> str:
    """Return one line: the engine's own words, else the innermost error, since the layers around it say nothing."""
    if isinstance(error, APIError) and error.explanation:
        return one_line(str(error.explanation))
    if isinstance(error, MALFORMED_ERRORS):
        return one_line(f"its answer is no Docker engine's ({type(error).__name__}: {error})")
    while error.__context__ is not None:
        error = error.__context__
    return one_line(str(error)) or type(error).__name__

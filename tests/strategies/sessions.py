"""Sessions: plain makers for tables of examples, and a strategy for any state."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from muster.core.model.session import (
    FINAL,
    PLACED,
    Allocation,
    LaunchStep,
    Result,
    Session,
    SessionState,
    kernel_count,
    kernels_of,
    spare_kernels_of,
)
from muster.core.model.wait import Wait, WaitCode
from muster.core.spec.session_spec import SessionSpec
from tests.strategies.specs import specs
from tests.strategies.values import NOW, new_id

STATES = tuple(SessionState)


def make_session(number: int = 1, *, state: SessionState = SessionState.PENDING, **values: Any) -> Session:
    """Return a session with nothing placed. `values` are fields of the spec, or else of the session."""
    in_spec = {key: values.pop(key) for key in list(values) if key in SessionSpec.model_fields}
    in_spec = {"name": f"s{number}", "image": "busybox", **in_spec}
    spec = SessionSpec.model_validate(in_spec)
    ids = tuple(new_id(number, kernel) for kernel in range(kernel_count(spec)))
    kernels = kernels_of(spec, ids, spec.image)
    session = Session(ids[0], spec.name, "ada", spec, kernels, NOW + number, state)
    return replace(session, spare=spare_kernels_of(spec, ids, spec.image), **values)


def make_array(number: int, indexes: Iterable[int], **values: Any) -> list[Session]:
    """Return the sessions of one array, as they are submitted."""
    spec = {"name": f"s{number}", "array": ",".join(map(str, indexes)), **values}
    made = [make_session(number + place, **spec) for place, _ in enumerate(indexes)]
    return [
        replace(s, name=f"{s.spec.name}-{index}", array_id=made[0].id, array_index=index, submitted_at=NOW + number)
        for s, index in zip(made, indexes, strict=True)
    ]


def uneven(*roles: dict[str, Any], **main: Any) -> Session:
    """Return a session over several agents with its main1 and these roles."""
    entries = [
        {"name": name, "replicas": 1, **role} for name, role in zip(("ps", "worker", "loader"), roles, strict=False)
    ]
    return make_session(1, **{"cluster_mode": "multi-node", "mem": "1G", "shm": 0, **main, "roles": entries})


def placed_on(session: Session, *agent_ids: str, state: SessionState = SessionState.RUNNING) -> Session:
    """Return the session with its kernels on the agents in turn, launched once."""
    kernels = tuple(
        replace(kernel, allocation=Allocation(agent_ids[kernel.rank % len(agent_ids)])) for kernel in session.kernels
    )
    launched = state in {SessionState.PREPARING, SessionState.RUNNING, SessionState.TERMINATING}
    running = state in {SessionState.RUNNING, SessionState.TERMINATING}
    return replace(
        session,
        kernels=kernels,
        state=state,
        reason="running" if running else "placed",
        placed_mode="single-node" if len(agent_ids) == 1 else "multi-node",
        step=LaunchStep.STARTING if state is SessionState.PREPARING else None,
        generation=7 if launched else 0,
        started_at=NOW if running else None,
    )


def first_for(passes: int) -> Wait:
    """Return the wait of a session that was the first that did not fit in so many passes."""
    return Wait(WaitCode.BUSY, "busy", passes=passes)


@st.composite
def sessions_in_any_state(draw: st.DrawFn, number: int = 1) -> Session:
    """Draw one session in any of its states, with the facts that such a state comes with."""
    spec = draw(specs())
    spec = spec.model_copy(update={"name": spec.name or f"s{number}", "image": "busybox"})
    ids = tuple(new_id(number, kernel) for kernel in range(kernel_count(spec)))
    session = Session(ids[0], spec.name, "ada", spec, kernels_of(spec, ids, spec.image), NOW)
    session = replace(session, spare=spare_kernels_of(spec, ids, spec.image))
    state = draw(st.sampled_from(STATES))
    if state in PLACED:
        if spec.is_elastic:
            session = session.of_size(draw(st.integers(*spec.sizes)))
        session = placed_on(session, *draw(st.sampled_from((("a1",), ("a1", "a2")))), state=state)
    if state in {SessionState.TERMINATING, SessionState.TERMINATED, SessionState.ERROR}:
        session = replace(
            session, result=draw(st.sampled_from(tuple(Result))), exit_code=draw(st.none() | st.integers(0, 255))
        )
    if state in FINAL:
        session = replace(session, ended_at=NOW + 60)
    indexes = spec.array_indexes
    return replace(
        session,
        state=state,
        held_by=draw(st.sampled_from((None, "eve"))),
        array_id=new_id(number + 1) if indexes else None,
        array_index=draw(st.sampled_from(indexes)) if indexes else None,
        stranded_on=draw(st.sampled_from(((), ("a1",), ("a1", "a2")))),
    )

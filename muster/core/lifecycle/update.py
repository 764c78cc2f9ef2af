"""How a session that waits changes with its spec, and what may not change any more."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from muster.core.model.session import Session, kernel_count, kernels_of, spare_kernels_of
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError

# What reports on the use of earlier runs read from the session as it is now.
_COUNTED = ("project", "resource_group", "cpu", "mem", "gpu", "fgpu", "cluster_size", "roles")


def update_errors(session: Session, spec: SessionSpec, *, whole_array: bool) -> Iterator[FieldError]:
    """Yield the errors of a new spec for a pending session; `whole_array`: all of its array are to get it."""
    before = session.spec
    if spec.name != before.name:
        yield FieldError("name", "it is not changed by an update", "use `muster rename`")
    if spec.hold != before.hold:
        yield FieldError("hold", "it is not changed by an update", "use `muster hold` or `muster release`")
    if spec.array_indexes != before.array_indexes:
        remedy = "change no more than the number behind %, or submit it anew" if before.array else "submit it anew"
        yield FieldError("array", "a session that waits keeps its indexes", remedy)
    elif spec.array_most != before.array_most and not whole_array:
        yield FieldError("array", "the number behind % is that of the whole array", f"update {session.array_name}")
    if session.requeues:
        # It would be counted as if it had had that all along.
        for field in _COUNTED:
            if getattr(spec, field) != getattr(before, field):
                yield FieldError(
                    field, "the session has run before, and its use was counted with this", "leave it as it is"
                )


def updated(session: Session, spec: SessionSpec, new_id: Callable[[], str]) -> Session:
    """Return a pending session with another spec, at its place in the queue. Launches that failed no longer count.

    Its kernels keep their ids, by rank; `new_id` makes those of kernels that it did not have. A new time limit is all
    that it has: what was added to another one, when it ran before, is not added to this.
    """
    known = [kernel.id for kernel in session.possible_kernels]
    ids = (*known, *(new_id() for _ in range(kernel_count(spec) - len(known))))
    return replace(
        session,
        spec=spec,
        kernels=kernels_of(spec, ids, spec.image),
        spare=spare_kernels_of(spec, ids, spec.image),
        attempts=0,
        retry_at=None,
        failed_on=(),
        extended_s=session.extended_s if spec.time_limit == session.spec.time_limit else 0,
        wait=None,
        updates=session.updates + 1,
    )

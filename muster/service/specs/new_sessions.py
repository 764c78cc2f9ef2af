"""Sessions made of a spec: one, several that are numbered, or those of an array."""

import uuid
from collections.abc import Iterator
from dataclasses import replace

from muster.core.model.session import Session, kernel_count, kernels_of, spare_kernels_of
from muster.core.spec.session_spec import NAME_PATTERN, SessionSpec
from muster.core.values.errors import BadInputError

MAX_COUNT = 10_000
MAX_KERNELS_AT_ONCE = 100_000
MAX_DEPENDENCIES_AT_ONCE = 1_000_000
# A spec's text is stored with each session, and sent with each kernel's manifest.
MAX_BYTES_AT_ONCE = 128 << 20


def new_sessions(spec: SessionSpec, owner: str, count: int, now: float) -> list[Session]:
    """Make `count` sessions, or one for each index of the array. Raises BadInputError for an impossible count."""
    if not 1 <= count <= MAX_COUNT:
        raise BadInputError(f"count: {count} sessions at once are not possible; write 1 to {MAX_COUNT}")
    if spec.array and count > 1:
        raise BadInputError("count: an array is given as well; give one of them")
    at_once = len(spec.array_indexes) or count
    check_amounts(spec, at_once, "array" if spec.array else "count")
    made = list(_array(spec, owner, now) if spec.array else _numbered(spec, owner, count, now))
    for session in made:
        if not NAME_PATTERN.fullmatch(session.name):
            raise BadInputError(f"name: {session.name} is longer than 63 characters; choose a shorter one")
    return made


def check_amounts(spec: SessionSpec, at_once: int, field: str) -> None:
    """Check how much so many sessions of one spec are together; `field` says how many. Raises BadInputError."""
    if at_once * kernel_count(spec) > MAX_KERNELS_AT_ONCE:
        raise BadInputError(
            f"{field}: {at_once} sessions of {kernel_count(spec)} containers are too many at once;"
            f" submit {MAX_KERNELS_AT_ONCE} containers at the most"
        )
    size = len(spec.model_dump_json(exclude_defaults=True))
    if at_once * kernel_count(spec) * size > MAX_BYTES_AT_ONCE:
        raise BadInputError(
            f"{field if at_once > 1 else 'cluster_size'}: {at_once} sessions of {kernel_count(spec)} containers that"
            f" are each given {size} bytes are too much at once; put scripts, input and long variables into a"
            " data folder, and read them from there"
        )
    if at_once * len(spec.dependencies) > MAX_DEPENDENCIES_AT_ONCE:
        raise BadInputError(
            f"{field}: {at_once} sessions that each start after {len(spec.dependencies)} others are too many at once;"
            " let one session start after those, and these after that one"
        )


def _numbered(spec: SessionSpec, owner: str, count: int, now: float) -> Iterator[Session]:
    for number, ids in enumerate(_ids(spec, count), 1):
        session = _session(spec, owner, now, ids)
        name = session.name if count == 1 or not spec.name else f"{spec.name}-{number}"
        yield replace(session, name=name, spec=spec.model_copy(update={"name": name}))


def _array(spec: SessionSpec, owner: str, now: float) -> Iterator[Session]:
    """Yield the sessions of an array. They share one spec, whose name is the array's."""
    made = [_session(spec, owner, now, ids) for ids in _ids(spec, len(spec.array_indexes))]
    shared = spec.model_copy(update={"name": made[0].name})
    for index, session in zip(spec.array_indexes, made, strict=True):
        name = f"{shared.name}-{index}"
        yield replace(session, name=name, spec=shared, array_id=made[0].id, array_index=index)


def _ids(spec: SessionSpec, count: int) -> list[tuple[str, ...]]:
    """Return the kernels' ids of so many sessions.

    They rise: of sessions that are submitted at the same time the id decides which is first, so the number does.
    """
    return sorted(tuple(str(uuid.uuid4()) for _ in range(kernel_count(spec))) for _ in range(count))


def _session(spec: SessionSpec, owner: str, now: float, ids: tuple[str, ...]) -> Session:
    return Session(
        id=ids[0],
        name=spec.name or f"session-{ids[0][:8]}",
        owner=owner,
        spec=spec,
        kernels=kernels_of(spec, ids, spec.image),
        spare=spare_kernels_of(spec, ids, spec.image),
        submitted_at=now,
        reason=f"held by {owner}" if spec.hold else "",
        held_by=owner if spec.hold else None,
    )

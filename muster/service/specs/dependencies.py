"""What a session is to start after: users name sessions, the queue keeps their ids."""

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import AmbiguousNameError, FieldError, NotFoundError, SpecError
from muster.store.store import Store

_FIELDS = ("after", "after_ok", "after_any")


def with_ids_of_dependencies(spec: SessionSpec, store: Store, owner: str | None) -> SessionSpec:
    """Replace each name by the id of the session, or the ids of the array's sessions, that this owner sees by it.

    Raises SpecError.
    """
    errors: list[FieldError] = []
    ids: dict[str, tuple[str, ...]] = {}
    for field in _FIELDS:
        found: dict[str, None] = {}
        for reference in getattr(spec, field):
            try:
                found |= dict.fromkeys(store.ids(reference, owner))
            except (NotFoundError, AmbiguousNameError) as error:
                problem, _, remedy = str(error).partition("; ")
                errors.append(FieldError(field, problem, remedy))
        ids[field] = tuple(found)
    if errors:
        raise SpecError(errors)
    return spec.model_copy(update=ids)

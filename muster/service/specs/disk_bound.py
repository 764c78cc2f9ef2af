"""What the site lets a kernel write on its agent's disk."""

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SpecError
from muster.core.values.units import exact_bytes


def with_disk_limit(spec: SessionSpec, most_bytes: int | None) -> SessionSpec:
    """Return the spec with the site's limit as its own, where it has none. Raises SpecError."""
    if most_bytes is None:
        return spec
    if spec.disk is None:
        return spec.model_copy(update={"disk": most_bytes})
    if spec.disk > most_bytes:
        most = exact_bytes(most_bytes)
        problem = f"{exact_bytes(spec.disk)} is more than this site gives a container, {most}"
        raise SpecError([FieldError("disk", problem, f"ask for {most} or less")])
    return spec

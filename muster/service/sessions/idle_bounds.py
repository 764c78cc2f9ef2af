"""What the site lets a session ask for: how long it may be idle, and how long it may live."""

from collections.abc import Iterator

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SpecError
from muster.core.values.units import format_duration
from muster.idle_settings import Idle


def with_site_bounds(spec: SessionSpec, idle: Idle) -> SessionSpec:
    """Return the spec with the site's longest life as its time limit, where it has none. Raises SpecError."""
    own = idle.of(spec.resource_group)
    errors = list(_errors(spec, own))
    if errors:
        raise SpecError(errors)
    if own.max_lifetime is None or spec.time_limit is not None:
        return spec
    return spec.model_copy(update={"time_limit": own.max_lifetime})


def _errors(spec: SessionSpec, idle: Idle) -> Iterator[FieldError]:
    if idle.max_lifetime is not None and (spec.time_limit or 0) > idle.max_lifetime:
        longest = format_duration(idle.max_lifetime)
        problem = f"{format_duration(spec.time_limit or 0)} is longer than any session of this site lives, {longest}"
        yield FieldError("time_limit", problem, f"ask for {longest} or less")
    if idle.may_opt_out or idle.timeout is None:
        return
    longest = format_duration(idle.timeout)
    if (spec.idle_timeout or 0) > idle.timeout:
        problem = f"{format_duration(spec.idle_timeout or 0)} is longer than this site allows, {longest}"
        yield FieldError("idle_timeout", problem, f"ask for {longest} or less")
    if spec.no_idle_check:
        problem = f"this site ends every session that is idle for {longest}"
        yield FieldError("no_idle_check", problem, "leave it out")

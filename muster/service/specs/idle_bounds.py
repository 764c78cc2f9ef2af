"""What the site lets a session ask for: how long it may be idle or live, how long before its end it gets a signal."""

from collections.abc import Iterator

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SpecError
from muster.core.values.units import exact_duration
from muster.idle_settings import Idle
from muster.settings import Settings


def with_site_bounds(spec: SessionSpec, settings: Settings) -> SessionSpec:
    """Return the spec with its group's default as its time limit, where it has none. Raises SpecError.

    Without a default it is the longest life that a session may have there, if that is bounded.
    """
    own = settings.idle.of(spec.resource_group)
    errors = [*_errors(spec, own), *_signal_errors(spec, settings.signal_most)]
    if errors:
        raise SpecError(errors)
    usual = settings.scheduling_of(spec.resource_group).default_time_limit
    limit = own.max_lifetime if usual is None else usual
    if limit is None or spec.time_limit is not None:
        return spec
    return spec.model_copy(update={"time_limit": limit})


def _signal_errors(spec: SessionSpec, most_s: int) -> Iterator[FieldError]:
    if spec.signal_s > most_s:
        longest = exact_duration(most_s)
        problem = f"{exact_duration(spec.signal_s)} before the end is longer than this site allows, {longest}"
        yield FieldError("signal", problem, f"ask for {longest} or less, as in {spec.signal_name}@{most_s}")


def _errors(spec: SessionSpec, idle: Idle) -> Iterator[FieldError]:
    if idle.max_lifetime is not None and (spec.time_limit or 0) > idle.max_lifetime:
        longest = exact_duration(idle.max_lifetime)
        problem = f"{exact_duration(spec.time_limit or 0)} is longer than any session of this site lives, {longest}"
        yield FieldError("time_limit", problem, f"ask for {longest} or less")
    if idle.may_opt_out or idle.timeout is None:
        return
    longest = exact_duration(idle.timeout)
    if (spec.idle_timeout or 0) > idle.timeout:
        problem = f"{exact_duration(spec.idle_timeout or 0)} is longer than this site allows, {longest}"
        yield FieldError("idle_timeout", problem, f"ask for {longest} or less")
    if spec.no_idle_check:
        problem = f"this site ends every session that is idle for {longest}"
        yield FieldError("no_idle_check", problem, "leave it out")

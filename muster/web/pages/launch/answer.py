"""The preview of the form: where its sessions would start now, or why not and what would help; and as text."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from muster.core.spec.command_line import submit_command
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.errors import FieldError, MusterError, SpecError
from muster.core.values.units import format_minute, local_time
from muster.core.whatif.explain import Surroundings, explain, moment_text, placed_where
from muster.service.questions.views import DryRunItemView, DryRunView, SuggestionView
from muster.service.specs.launch_choices import LaunchChoices
from muster.web.pages.launch.fields import FIELDS, OTHERS, Kind, label_of, with_labels
from muster.web.pages.launch.form import LaunchForm, field_text, values_of
from muster.web.pages.launch.picture import Picture, picture_of
from muster.web.pages.launch.session_file import text_of
from muster.web.words import plain_words

MAX_TRIED = 50
_MAX_NAMES = 6
_MAX_SHOWN = 10
# Of a field such as `roles[1].cpu`, what stands behind its name.
_PART = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
_FIELD_OF_LINE = re.compile(r"([a-z_]+): (.*)", re.DOTALL)
RunDry = Callable[[Mapping[str, Any], int], DryRunView]


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggestion. `fields` is its changes to the form, as JSON, if the form can hold them."""

    text: str
    fields: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The forecast of the form. `kind` is starts, waits, never or wrong; `line` says it in one line."""

    kind: str
    line: str
    details: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True)
class AsText:
    """The form as a command line and as a session file."""

    command: str
    unflagged: str
    file: str


@dataclass(frozen=True, slots=True)
class Preview:
    """The page's answer to a form: `problems` by field, the rest only if the fields are valid."""

    verdict: Verdict
    problems: Mapping[str, str] = field(default_factory=dict)
    picture: Picture | None = None
    text: AsText | None = None


def preview_of(form: LaunchForm, choices: LaunchChoices, dry_run: RunDry) -> Preview:
    """Return the preview of a form."""
    now = local_time(time.time())
    picture, text = None, None
    try:
        values, count = values_of(form), form.sessions
        spec = _spec(values, now, dry_run)
        picture = picture_of(spec, choices.groups.get(spec.resource_group))
        text = _as_text(spec, form, count)
        tried = min(count, MAX_TRIED)
        return Preview(_verdict(dry_run(values, tried), tried, count), {}, picture, text)
    except MusterError as error:
        return Preview(refusal(error), problems_of(error), picture, text)


def _spec(values: Mapping[str, Any], now: datetime, dry_run: RunDry) -> SessionSpec:
    """Return the spec. Raises SpecError with all errors, also those that only the control node sees."""
    try:
        return validated(SessionSpec, values, now)
    except SpecError:
        dry_run(values, 1)
        raise


def refusal(error: MusterError) -> Verdict:
    """Return the verdict on a form with an error."""
    return _wrong("Cannot be launched", error)


def not_saved(error: MusterError) -> Verdict:
    """Return the verdict on a form that is no preset."""
    return _wrong("The preset cannot be saved", error)


def _wrong(verdict: str, error: MusterError) -> Verdict:
    lines = [_line(one) for one in _errors(error)] or plain_words(str(error)).splitlines()
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return Verdict("wrong", f"{verdict}: {lines[0]}{more}", tuple(lines[1:]))


def problems_of(error: MusterError) -> dict[str, str]:
    """Return the problems by the field of the form that they are shown beside; problems of no field are left out."""
    found: dict[str, list[str]] = {}
    for one in _errors(error):
        name = _field(one)
        found.setdefault(name or "more", []).append(_text(one) if name else f"{one.field}: {_text(one)}")
    return {name: " · ".join(lines) for name, lines in found.items()}


def _field(error: FieldError) -> str:
    """Return the field of the form that an error is about; an empty text for one that is a part of no field."""
    head = re.split(r"[.\[]", error.field, maxsplit=1)[0]
    return head if head in FIELDS or head in OTHERS else ""


def _line(error: FieldError) -> str:
    return f"{label_of(_field(error)) or error.field}: {_text(error)}"


def _text(error: FieldError) -> str:
    """Return the problem and the remedy, in the form's own words, after the part of the field that they are about."""
    text = plain_words(f"{error.problem}; {error.remedy}" if error.remedy else error.problem)
    name = _field(error)
    if not name:
        return text
    parts = [f"entry {int(one[0]) + 1}" if one[0] else one[1] for one in _PART.findall(error.field[len(name) :])]
    return with_labels(f"{', '.join(parts)}: {text}" if parts else text)


def _errors(error: MusterError) -> Sequence[FieldError]:
    if isinstance(error, SpecError):
        return error.errors
    about = _FIELD_OF_LINE.fullmatch(str(error))
    return [FieldError(about[1], about[2], "")] if about and about[1] in {*FIELDS, *OTHERS} else []


def _as_text(spec: SessionSpec, form: LaunchForm, count: int) -> AsText:
    values = written(spec)
    if "begin" in values:
        values["begin"] = form.texts["begin"].strip() or values["begin"]
    command = submit_command(values, count)
    return AsText(command.text, ", ".join(command.unflagged), text_of(values) or "{}\n")


def _verdict(dry_run: DryRunView, tried: int, count: int) -> Verdict:
    items = dry_run.items
    waiting = next((item for item in items if item.wait is not None), None)
    starting = [item for item in items if item.wait is None]
    details = [f"{one.name} starts now on {_where(one)}" for one in starting[:_MAX_SHOWN]] if len(items) > 1 else []
    if len(starting) > _MAX_SHOWN:
        details.append(f"and {len(starting) - _MAX_SHOWN} more that start now")
    details += dry_run.warnings
    if tried < count:
        details.append(f"of the {count} sessions, the first {tried} were tried")
    if dry_run.unworked is not None:
        details, starting = [dry_run.unworked], []
        if waiting is None:
            return Verdict("waits", f"Waits: {dry_run.unworked}")
    if waiting is None or waiting.wait is None:
        lines = _placed_details(items[0], dry_run) if len(items) == 1 else []
        given = f", with {items[0].size} containers" if items[0].size != str(items[0].cluster_size) else ""
        first = f"Starts now on {_where(items[0])}{given}" if len(items) == 1 else f"All {len(items)} start now"
        return Verdict("starts", first, (*lines, *details))
    wait = waiting.wait
    around = Surroundings(time.time(), format_minute, dry_run.names, dry_run.unworked is None, waiting.left_out)
    lines = explain(waiting, wait, wait.position or 0, around, advice=False)
    when = f"; estimated start {moment_text(wait.estimated_start, around)}" if wait.estimated_start else ""
    verb = "Can never start" if waiting.never_starts else "Waits"
    counted = f"{len(starting)} of {len(items)} start now. {waiting.name}: " if len(items) > 1 else ""
    advice = tuple(_advice(suggestion, around) for suggestion in waiting.suggestions)
    kind = "never" if waiting.never_starts else "waits"
    return Verdict(kind, f"{counted}{verb}: {wait.message}{when}", (*details, *lines), advice)


def _where(item: DryRunItemView) -> str:
    """Return a text such as `agent-2 (main1, sub1) and agent-1 (sub2)`."""
    by_agent: dict[str, list[str]] = {}
    for kernel in item.kernels:
        by_agent.setdefault(kernel.agent, []).append(kernel.name)
    parts = [f"{agent} ({_names(names)})" for agent, names in by_agent.items()]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _names(names: Sequence[str]) -> str:
    if len(names) <= _MAX_NAMES:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, …, {names[-1]}: {len(names)} containers"


def _placed_details(item: DryRunItemView, dry_run: DryRunView) -> list[str]:
    """Return the GPUs of each kernel; nothing for a placement without GPUs."""
    return list(placed_where(item.kernels, dry_run.gpu_indexes)) if any(kernel.gpus for kernel in item.kernels) else []


def _advice(suggestion: SuggestionView, around: Surroundings) -> Advice:
    when = "" if suggestion.starts_at is None else f", at {moment_text(suggestion.starts_at, around)}"
    fields = _changed_fields(suggestion.spec_changes)
    return Advice(suggestion.text + when, json.dumps(fields) if fields else "")


def _changed_fields(changes: Mapping[str, Any] | None) -> dict[str, str | bool] | None:
    """Return the form's fields as a suggestion changes them; None where the form cannot follow it."""
    fields: dict[str, str | bool] = {}
    for name, value in (changes or {}).items():
        if name in FIELDS and FIELDS[name].kind is Kind.CHECK:
            fields[name] = bool(SessionSpec.model_fields[name].default if value is None else value)
            continue
        text = field_text(name, value)
        if text is None:
            return None
        fields[name] = text
    return fields

"""What would become of the form: where its sessions start now, or why not and what would let them; and as text."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from muster.core.spec.command_line import submit_command
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.errors import FieldError, MusterError, SpecError
from muster.core.whatif.counterfactual import Answer
from muster.core.whatif.explain import Surroundings, explain, moment_text, placed_where
from muster.core.whatif.hypothesis import SpecChange, Suggestion
from muster.service.questions.dry_run import DryRun
from muster.service.sessions.launch_choices import LaunchChoices
from muster.web.pages.launch.fields import FIELDS, OTHERS, Kind
from muster.web.pages.launch.form import LaunchForm, shown_text, values_of
from muster.web.pages.launch.picture import Picture, picture_of
from muster.web.pages.launch.session_file import text_of

MOST_TRIED = 50
_MOST_NAMES = 6
_MOST_SHOWN = 10
_FIELD_OF_LINE = re.compile(r"([a-z_]+): (.*)", re.DOTALL)
Ask = Callable[[Mapping[str, Any], int], DryRun]


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggestion; `fields` is what it changes of the form, as JSON, where the form can hold that."""

    text: str
    fields: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` is starts, waits, never or wrong; `line` says it in one."""

    kind: str
    line: str
    details: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True)
class AsText:
    """The same as a command line and as a session file."""

    command: str
    unflagged: str
    file: str


@dataclass(frozen=True, slots=True)
class Preview:
    """`problems` by the field that they stand beside; the rest only where the fields are right."""

    verdict: Verdict
    problems: Mapping[str, str] = field(default_factory=dict)
    picture: Picture | None = None
    text: AsText | None = None


def preview_of(form: LaunchForm, choices: LaunchChoices, ask: Ask) -> Preview:
    now = datetime.now().astimezone()
    picture, text = None, None
    try:
        values, count = values_of(form), form.sessions
        spec = validated(SessionSpec, values, now)
        picture = picture_of(spec, choices.groups.get(spec.resource_group))
        text = _as_text(spec, form, count)
        tried = min(count, MOST_TRIED)
        return Preview(_verdict(ask(values, tried), spec, tried, count), {}, picture, text)
    except MusterError as error:
        return Preview(refusal(error), problems_of(error), picture, text)


def refusal(error: MusterError) -> Verdict:
    lines = str(error).splitlines()
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return Verdict("wrong", f"Cannot be launched: {lines[0]}{more}", tuple(lines[1:]))


def problems_of(error: MusterError) -> dict[str, str]:
    """By the field of the form that each stands beside; what is about none of them is not here."""
    found: dict[str, list[str]] = {}
    for one in _errors(error):
        head = re.split(r"[.\[]", one.field, maxsplit=1)[0]
        beside = head if head in FIELDS or head in OTHERS else "more"
        named = "" if one.field == beside else f"{one.field}: "
        remedy = f"; {one.remedy}" if one.remedy else ""
        found.setdefault(beside, []).append(f"{named}{one.problem}{remedy}")
    return {name: " · ".join(lines) for name, lines in found.items()}


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


def _verdict(told: DryRun, spec: SessionSpec, tried: int, count: int) -> Verdict:
    answers = told.answers
    waiting = next((answer for answer in answers if answer.placement is None), None)
    starting = [answer for answer in answers if answer.placement is not None]
    details = (
        [f"{one.session.name} starts now on {_where(one)}" for one in starting[:_MOST_SHOWN]]
        if len(answers) > 1
        else []
    )
    if len(starting) > _MOST_SHOWN:
        details.append(f"and {len(starting) - _MOST_SHOWN} more that start now")
    if tried < count:
        details.append(f"of the {count} sessions, the first {tried} were tried")
    if waiting is None or waiting.wait is None:
        lines = _placed_details(answers[0], told) if len(answers) == 1 else []
        first = f"Starts now on {_where(answers[0])}" if len(answers) == 1 else f"All {len(answers)} start now"
        return Verdict("starts", first, (*lines, *details))
    wait = waiting.wait
    around = Surroundings(time.time(), _clock_text, told.names)
    lines = explain(waiting.session, wait, wait.position, around, advice=False)
    when = f"; estimated start {moment_text(wait.estimated_start, around)}" if wait.estimated_start else ""
    verb = "Can never start" if waiting.hopeless else "Waits"
    counted = f"{len(starting)} of {len(answers)} start now. {waiting.session.name}: " if len(answers) > 1 else ""
    advice = tuple(_advice(suggestion, spec, around) for suggestion in waiting.suggestions)
    kind = "never" if waiting.hopeless else "waits"
    return Verdict(kind, f"{counted}{verb}: {wait.message}{when}", (*details, *lines), advice)


def _where(answer: Answer) -> str:
    """`agent-2 (main1, sub1) and agent-1 (sub2)`."""
    by_agent: dict[str, list[str]] = {}
    for kernel in answer.session.kernels:
        allocations = answer.placement.allocations if answer.placement else {}
        by_agent.setdefault(allocations[kernel.id].agent_id, []).append(kernel.name)
    parts = [f"{agent} ({_names(names)})" for agent, names in by_agent.items()]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _names(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, …, {names[-1]}: {len(names)} containers"


def _placed_details(answer: Answer, told: DryRun) -> list[str]:
    """Which GPUs they get; nothing that the line does not say already."""
    placed = answer.placement
    if placed is None or not any(allocation.gpus for allocation in placed.allocations.values()):
        return []
    return list(placed_where(answer.session, placed.allocations, told.gpu_indexes))


def _advice(suggestion: Suggestion, spec: SessionSpec, around: Surroundings) -> Advice:
    when = "" if suggestion.starts_at is None else f", at {moment_text(suggestion.starts_at, around)}"
    fields = _changed_fields(suggestion, spec)
    return Advice(suggestion.text + when, json.dumps(fields) if fields else "")


def _changed_fields(suggestion: Suggestion, spec: SessionSpec) -> dict[str, str | bool] | None:
    """What stands in the form's fields with the suggestion followed; None where it is not for the user to follow."""
    changes: dict[str, Any] = {}
    for change in suggestion.changes:
        if not isinstance(change, SpecChange):
            return None
        changes |= change.fields
    values = written(spec.model_copy(update=changes))
    fields: dict[str, str | bool] = {}
    for name in changes:
        if name in FIELDS and FIELDS[name].kind is Kind.CHECK:
            fields[name] = bool(changes[name])
            continue
        text = shown_text(name, values.get(name))
        if text is None:
            return None
        fields[name] = text
    return fields


def _clock_text(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"

"""A job script of Slurm as fields of a session spec (docs/slurm.md).

A node of Slurm becomes a kernel, and its tasks are processes in that kernel.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from muster.core.spec.mounts import HOME
from muster.core.spec.sbatch_options import SbatchOption, sbatch_options
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.array import array_indexes
from muster.core.values.errors import FieldError
from muster.core.values.units import parse_duration

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_OF_A_NAME = 50
_COUNT = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_NODES = re.compile(r"([1-9]\d{0,5})(?:-(\d{1,6}))?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,12})([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_NO_LIMIT = re.compile(r"[0:-]+|unlimited|infinite", re.IGNORECASE)
_GPUS = re.compile(r"(?:([A-Za-z_][\w.-]*):)?(\d{1,4})", re.ASCII)
_GRES = re.compile(r"(?:gres/)?gpu(?::([A-Za-z_][\w.-]*))?(?::(\d{1,4}))?", re.ASCII)
_SOON = re.compile(r"now(?:\+(\d{1,9})([a-z]*))?", re.IGNORECASE)
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_TIMES = {"midnight": "00:00", "noon": "12:00", "teatime": "16:00"}
_MOMENT = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?|\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2})?)?", re.ASCII)
_DEPENDENCIES = {"after": "after", "afterok": "after_ok", "afterany": "after_any"}
_SIGNAL = re.compile(r"(?:([RB]{1,2}):)?(\w+(?:@\d{1,9})?)", re.ASCII | re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Translation:
    """What a script's #SBATCH lines mean: fields of the spec, and options without effect as they were written.

    `errors` name the lines of what cannot be translated. The fields that it is about, `in_doubt`, have the line's text:
    the spec refuses them, and checks nothing that follows from them.
    """

    fields: Mapping[str, Any]
    without_effect: tuple[str, ...]
    errors: tuple[FieldError, ...] = ()
    in_doubt: frozenset[str] = frozenset()


def translation(script: str, environment: Mapping[str, str]) -> Translation:
    """Return the meaning of a script's #SBATCH lines; `environment` has the variables that --export may name."""
    options, errors = sbatch_options(script)
    draft = _Draft(options, environment, errors)
    draft.without_effect += [option.written for option in options.values() if not option.is_translated]
    for name, read in _READERS.items():
        if name in options:
            read(draft, options[name])
    draft.add_size()
    fields = {**draft.fields, **draft.in_doubt}
    return Translation(fields, tuple(draft.without_effect), tuple(draft.errors), frozenset(draft.in_doubt))


def session_name(text: str) -> str:
    """Return the session name for a job's name, or for that of its script; empty where it has no letter or digit."""
    return _NOT_IN_A_NAME.sub("-", text).strip("-_.")[:_MOST_OF_A_NAME]


def logs_outside_folders(values: Mapping[str, Any]) -> dict[str, str]:
    """Return by field the log files of a spec that no data folder holds; none of a spec that is not valid."""
    about_logs = ("output", "error", "workdir", "mounts", "dot_folders")
    try:
        spec = SessionSpec.model_validate({name: values[name] for name in about_logs if name in values})
    except ValidationError:
        return {}
    return spec.lost_logs(HOME)


@dataclass(slots=True)
class _Draft:
    """The translation in the making."""

    options: Mapping[str, SbatchOption]
    environment: Mapping[str, str]
    errors: list[FieldError]
    fields: dict[str, Any] = field(default_factory=lambda: {"slurm_env": True})
    without_effect: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    nodes: tuple[int, int] | None = None
    in_doubt: dict[str, str | None] = field(default_factory=dict)

    def refuse(self, option: SbatchOption, problem: str, remedy: str) -> None:
        self.errors.append(option.error(problem, remedy))
        self.in_doubt[_FIELDS[option.name]] = option.value

    def note(self, option: SbatchOption, what: str) -> None:
        """Say in the warning that an option has another effect than in Slurm."""
        self.without_effect.append(f"{option.written}={option.value} ({what})")

    def add_size(self) -> None:
        """Add the kernels, and what each is given: of a range of nodes, as the least of them need it."""
        least, most = self._sizes()
        tasks, per_node = (self.counts.get(name) for name in ("ntasks", "ntasks-per-node"))
        per_kernel = (per_node or 1) if tasks is None else -(-tasks // least)
        cpus = per_kernel * self.counts.get("cpus-per-task", 1)
        if most > 1:
            size = least if least == most else f"{least}-{most}"
            self.fields |= {"cluster_size": size, "cluster_mode": "multi-node"}
        if tasks is not None and not least == most == tasks:
            self.fields["tasks"] = tasks
        elif tasks is None and per_kernel > 1:
            self.fields["tasks_per_kernel"] = per_kernel
        self.fields["cpu"] = cpus
        if "mem" in self.counts:
            self.fields["mem"] = self.counts["mem"]
        elif "mem-per-cpu" in self.counts:
            self.fields["mem"] = self.counts["mem-per-cpu"] * cpus
        self._add_gpus(least)

    def _sizes(self) -> tuple[int, int]:
        """Return the least and the most kernels: one for each node, or for each task where no nodes are named.

        What is given to each node needs all tasks in one kernel then.
        """
        tasks, per_node = (self.counts.get(name) for name in ("ntasks", "ntasks-per-node"))
        if self.nodes is None:
            of_a_node = {"mem", "gpus-per-node", "gres"} & self.counts.keys()
            if tasks is not None and per_node is not None:
                tasks = -(-tasks // per_node)
            elif tasks is None or of_a_node:
                tasks = 1
            return tasks, tasks
        least, most = self.nodes
        if tasks is not None:
            if tasks < least:
                self.note(self.options["nodes"], f"{tasks}, one for each task")
            most = min(most, tasks)
            least = min(most, max(least, -(-tasks // per_node)) if per_node and least < most else least)
        if least < most and "gpus" in self.counts and self._gpus_of_each is None:
            self.note(self.options["nodes"], f"{least}, among which the GPUs are divided")
            most = least
        return least, most

    @property
    def _gpus_of_each(self) -> int | None:
        return self.counts.get("gpus-per-node", self.counts.get("gres"))

    def _add_gpus(self, nodes: int) -> None:
        of_each = self._gpus_of_each
        together = self.counts.get("gpus", 0)
        if of_each is not None:
            self.fields["gpu"] = of_each
        elif together % nodes:
            self.refuse(
                self.options["gpus"],
                f"{together} GPUs cannot be divided among {nodes} containers",
                "name those of each: --gpus-per-node",
            )
        elif together:
            self.fields["gpu"] = together // nodes


def _job_name(draft: _Draft, option: SbatchOption) -> None:
    name = session_name(option.value or "")
    if not name:
        draft.refuse(option, f"{option.value!r} holds no letter or digit", "write a name such as train")
        return
    draft.fields["name"] = name
    if name != option.value:
        draft.note(option, f"the session's name is {name}")


def _count(draft: _Draft, option: SbatchOption) -> None:
    if not _COUNT.fullmatch(option.value or ""):
        draft.refuse(option, f"{option.value!r} is no positive whole number", "write a number such as 4")
        return
    draft.counts[option.name] = int(option.value or "")


def _nodes(draft: _Draft, option: SbatchOption) -> None:
    match = _NODES.fullmatch(option.value or "")
    if match is None:
        draft.refuse(option, f"{option.value!r} is no number of nodes", "write a number such as 4, or 2-8")
        return
    least, most = int(match[1]), int(match[2] or match[1])
    if most < least:
        draft.refuse(option, f"the range {option.value} ends before it begins", "write its ends in order, as in 2-8")
        return
    draft.nodes = least, most


def _memory(draft: _Draft, option: SbatchOption) -> None:
    match = _MEMORY.fullmatch(option.value or "")
    if match is None:
        draft.refuse(option, f"{option.value!r} is no amount of memory", "write megabytes, or an amount such as 16G")
    elif int(match[1]) == 0:
        draft.refuse(option, "0 means all memory of a node, which differs here", "write an amount such as 16G")
    else:
        power = " KMGT".index(match[2].upper() or "M")
        draft.counts[option.name] = int(match[1]) << (10 * power)


def _gpus(draft: _Draft, option: SbatchOption) -> None:
    match = _GPUS.fullmatch(option.value or "")
    if match is None:
        draft.refuse(option, f"{option.value!r} is no number of GPUs", "write a number, or a100:2")
        return
    _add_gpus(draft, option.name, match[1], int(match[2]))


def _gres(draft: _Draft, option: SbatchOption) -> None:
    for resource in (option.value or "").split(","):
        match = _GRES.fullmatch(resource)
        if match is not None:
            _add_gpus(draft, "gres", match[1], int(match[2] or 1))
        elif resource.split(":")[0].removeprefix("gres/") == "gpu":
            draft.refuse(option, f"{resource!r} is no number of GPUs", "write gpu:2, or gpu:a100:2")
        elif resource != "none":
            draft.without_effect.append(f"--gres={resource}")


def _add_gpus(draft: _Draft, name: str, model: str | None, count: int) -> None:
    draft.counts[name] = draft.counts.get(name, 0) + count
    if model is not None:
        draft.fields["gpu_models"] = sorted({*draft.fields.get("gpu_models", ()), model})


def _time(draft: _Draft, option: SbatchOption) -> None:
    if _NO_LIMIT.fullmatch(option.value or ""):
        return
    try:
        draft.fields["time_limit"] = f"{parse_duration(option.value)}s"
    except ValueError as error:
        draft.refuse(option, str(error), "write minutes, hours:minutes:seconds or days-hours")


def _array(draft: _Draft, option: SbatchOption) -> None:
    try:
        array_indexes(option.value or "")
    except ValueError as error:
        draft.refuse(option, str(error), "write indexes such as 0-99, 1,3,5-9:2 or 0-99%8")
        return
    draft.fields["array"] = option.value


def _dependency(draft: _Draft, option: SbatchOption) -> None:
    remedy = "write afterok, afterany or after with sessions, such as afterok:NAME:NAME,after:NAME"
    for condition in (option.value or "").split(","):
        kind, *sessions = condition.split(":")
        if kind not in _DEPENDENCIES or not sessions or not all(sessions):
            draft.refuse(option, f"{condition!r} cannot be translated", remedy)
        elif any(mark in session for session in sessions for mark in "+?"):
            draft.refuse(option, f"{condition!r} has a delay or alternatives, which Muster lacks", remedy)
        else:
            draft.fields.setdefault(_DEPENDENCIES[kind], []).extend(sessions)


def _begin(draft: _Draft, option: SbatchOption) -> None:
    value = (option.value or "").strip()
    match = _SOON.fullmatch(value)
    unit = (match[2] or "second").lower().removesuffix("s") if match else ""
    if match and unit in _UNITS:
        seconds = int(match[1] or 0) * _UNITS[unit]
        draft.fields |= {"begin": f"now+{seconds}s"} if seconds else {}
    elif value.lower() in _TIMES or _MOMENT.fullmatch(value):
        draft.fields["begin"] = _TIMES.get(value.lower(), value)
    else:
        draft.refuse(option, f"{value!r} is no point in time", "write 2026-11-22T08:00, 08:00 or now+2hours")


def _export(draft: _Draft, option: SbatchOption) -> None:
    """Take the variables that are named. The environment of the submitting shell is another machine's."""
    names = (option.value or "").split(",")
    variables: dict[str, str] = {}
    for word in names:
        name, equals, value = word.partition("=")
        if word in {"ALL", "NIL", "NONE"}:
            continue
        if not _VARIABLE.fullmatch(name):
            draft.refuse(option, f"{word!r} is neither a variable nor ALL", "write NAME=VALUE, or NAME")
        elif equals or name in draft.environment:
            variables[name] = value if equals else draft.environment[name]
    if "ALL" in names:
        draft.without_effect.append("--export=ALL (the submitting shell's variables are not taken along)")
    if variables:
        draft.fields["env"] = variables


def _chdir(draft: _Draft, option: SbatchOption) -> None:
    if not (option.value or "").startswith("/"):
        draft.refuse(option, f"{option.value!r} is no absolute path", "write one that the containers have")
        return
    draft.fields["workdir"] = option.value


def _partition(draft: _Draft, option: SbatchOption) -> None:
    first, *others = (option.value or "").split(",")
    draft.fields["resource_group"] = first
    if others:
        draft.note(option, f"{first}, since a session is in one group")


def _signal(draft: _Draft, option: SbatchOption) -> None:
    """Read `[R][B]:NAME@SECONDS`: where the script's shell handles the signal, it goes there in any case, as with B."""
    match = _SIGNAL.fullmatch(option.value or "")
    if match is None:
        draft.refuse(option, f"{option.value!r} is no signal", "write one such as B:USR1@120")
        return
    draft.fields["signal"] = match[2]
    if "R" in (match[1] or "").upper():
        draft.note(option, "R has no meaning here")


def _as(name: str) -> Callable[[_Draft, SbatchOption], None]:
    """Return the reader of an option that means the same as a field."""

    def read(draft: _Draft, option: SbatchOption) -> None:
        draft.fields[name] = True if option.value is None else option.value

    return read


# The field of the spec that an option which can be refused is about.
_FIELDS: Mapping[str, str] = {
    "job-name": "name",
    "nodes": "cluster_size",
    "ntasks": "tasks",
    "ntasks-per-node": "tasks_per_kernel",
    "cpus-per-task": "cpu",
    "mem": "mem",
    "mem-per-cpu": "mem",
    "gres": "gpu",
    "gpus": "gpu",
    "gpus-per-node": "gpu",
    "time": "time_limit",
    "array": "array",
    "dependency": "after",
    "begin": "begin",
    "export": "env",
    "chdir": "workdir",
    "signal": "signal",
}
_READERS: Mapping[str, Callable[[_Draft, SbatchOption], None]] = {
    "job-name": _job_name,
    "nodes": _nodes,
    "ntasks": _count,
    "ntasks-per-node": _count,
    "cpus-per-task": _count,
    "mem": _memory,
    "mem-per-cpu": _memory,
    "gres": _gres,
    "gpus": _gpus,
    "gpus-per-node": _gpus,
    "time": _time,
    "array": _array,
    "dependency": _dependency,
    "output": _as("output"),
    "error": _as("error"),
    "partition": _partition,
    "account": _as("project"),
    "begin": _begin,
    "hold": _as("hold"),
    "requeue": _as("requeue"),
    "export": _export,
    "chdir": _chdir,
    "signal": _signal,
}

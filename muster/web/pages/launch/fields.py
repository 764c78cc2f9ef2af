"""The fields of the launch form: those of the session spec, with the spec's own help."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import get_args

from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written_value


class Kind(StrEnum):
    """The kind of a field's control. NAMES are separated by commas, LINES by line ends."""

    TEXT = "text"
    LONG = "long"
    CHOICE = "choice"
    CHECK = "check"
    NAMES = "names"
    LINES = "lines"


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of the form; `options` names the page's list of suggestions for it."""

    name: str
    label: str
    kind: Kind = Kind.TEXT
    options: str = ""
    hint: str = ""

    @property
    def help(self) -> str:
        return self.hint or SessionSpec.model_fields[self.name].description or ""

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(choice for choice in _literals(SessionSpec.model_fields[self.name].annotation) if choice)

    @property
    def default(self) -> str:
        """Return its text in the empty form."""
        field = SessionSpec.model_fields[self.name]
        value = field.get_default(call_default_factory=True)
        return str(written_value(field, value)) if isinstance(value, int | str) else ""


RESOURCES = (
    FormField("cpu", "CPU", hint="cores of each container"),
    FormField("mem", "Memory", hint="memory of each container"),
    FormField("shm", "Shared memory", hint="shared memory of each container, a part of its memory"),
    FormField(
        "disk", "Disk limit", hint="what each container may write outside its folders; the site's limit if not given"
    ),
    FormField("fgpu", "fGPU (a share of a GPU)", hint="fGPU units of each container"),
    FormField("gpu", "GPU (whole)", hint="whole GPUs of each container"),
    FormField(
        "gpu_models", "GPU model", Kind.NAMES, options="gpu_models", hint="any one of these, separated by commas"
    ),
)
CLUSTER_MODE = FormField(
    "cluster_mode",
    "Cluster mode",
    Kind.CHOICE,
    hint="all containers on one agent, or over several where one cannot hold them",
)
PLACE = (
    FormField("resource_group", "Resource group", options="groups"),
    FormField("project", "Project"),
    FormField("priority", "Priority"),
    FormField("time_limit", "Time limit"),
)
START = (
    FormField("type", "Type", Kind.CHOICE),
    FormField("command", "Start-up command", Kind.LONG),
    FormField("run_on", "Runs in", Kind.CHOICE, hint="the containers that run the command"),
    FormField(
        "bootstrap",
        "Bootstrap script",
        Kind.LONG,
        hint="every container runs it before its command; if it fails, the session ends",
    ),
)
FILES = (
    FormField("workdir", "Working directory"),
    FormField("input", "Input", Kind.LONG),
    FormField(
        "output",
        "Output file",
        hint="file in a folder that also gets the command's output, such as logs/%x.log; %x is the session's name",
    ),
    FormField("error", "File of standard error", hint="part of the output file if empty"),
)
PUBLISH = FormField(
    "publish",
    "Published ports",
    Kind.NAMES,
    hint="ports of main1 that a program of yours serves, such as 8000 or web=8000",
)
DOT_FOLDERS = FormField("dot_folders", "Mount my dot folders", Kind.CHECK)
ADVANCED = (
    FormField("begin", "Begin"),
    FormField("hold", "Hold", Kind.CHECK, hint="it does not start until you release it"),
    FormField("after", "Start after these start", Kind.NAMES, hint="sessions or arrays, separated by commas"),
    FormField("after_ok", "Start after these succeed", Kind.NAMES, hint="sessions or arrays, separated by commas"),
    FormField("after_any", "Start after these end", Kind.NAMES, hint="sessions or arrays, separated by commas"),
    FormField("array", "Array"),
    FormField("agents", "Agents", Kind.NAMES, options="agents", hint="only on these, separated by commas"),
    FormField(
        "exclude_agents", "Excluded agents", Kind.NAMES, options="agents", hint="not on these, separated by commas"
    ),
    FormField(
        "labels", "Agent labels", Kind.LINES, hint="labels that its agents must have, such as disk=ssd, one per line"
    ),
    FormField("topology", "Topology", Kind.CHOICE, hint="whether containers on several agents stay in one rack"),
    FormField("roles", "Roles", Kind.LINES, hint="one per line, besides main, such as ps:2 or worker:4,gpu=1,mem=8G"),
    FormField(
        "local_rank",
        "Local rank",
        Kind.CHOICE,
        hint="with “agent”, LOCAL_RANK counts the containers on one agent; with “kernel”, it is 0 in each",
    ),
    FormField("tasks", "Tasks", hint="processes that muster-run and srun start, over all containers"),
    FormField(
        "tasks_per_kernel", "Tasks of each container", hint="processes that muster-run and srun start in each container"
    ),
    FormField("slurm_env", "Slurm's variables", Kind.CHECK, hint="SLURM_JOB_ID, SLURM_PROCID and the others, and srun"),
    FormField(
        "fgpu_limit",
        "fGPU limit",
        hint="most fGPU units that a container may use while others leave the GPU idle; a whole GPU if empty",
    ),
    FormField("best_effort", "Best effort", Kind.CHECK, hint="it computes only while no other session needs that GPU"),
    FormField(
        "requeue",
        "Requeue",
        Kind.CHECK,
        hint="it is queued again, not ended, when its agent is lost or it is preempted",
    ),
    FormField(
        "preemptible",
        "Preemptible",
        Kind.CHECK,
        hint="it may be ended, or queued again if “Requeue” is checked, for a session of higher priority",
    ),
    FormField(
        "signal",
        "Signal before the end",
        hint="signal that the command gets before the session ends; USR1@120 is sent 120 seconds before",
    ),
    FormField("idle_timeout", "Idle timeout"),
    FormField("no_idle_check", "No idle check", Kind.CHECK),
    FormField("callback", "Callback"),
)
IMAGE = FormField(
    "image",
    "Image",
    options="images",
    hint="image of every container, by its name in the catalog or its whole reference; the site's default if not given",
)
NAME = FormField("name", "Session name")
CLUSTER_SIZE = FormField(
    "cluster_size", "Cluster size", hint="number of containers; 4-8 starts with as many as there is room for"
)
FIELDS: Mapping[str, FormField] = {
    field.name: field
    for field in (
        *(IMAGE, NAME, CLUSTER_SIZE, CLUSTER_MODE, PUBLISH, DOT_FOLDERS),
        *(*RESOURCES, *PLACE, *START, *FILES, *ADVANCED),
    )
}
# Fields with rows or boxes of their own, and fields that are not in the spec, by name with their labels.
OTHERS: Mapping[str, str] = {
    "count": "Number of sessions",
    "mounts": "Data folders",
    "env": "Environment",
    "secrets": "Secrets",
    "apps": "Apps",
    "more": "More fields",
    "preset": "Name of the preset",
}
_LABELS = {**{name: field.label.partition(" (")[0] for name, field in FIELDS.items()}, **OTHERS}
# Names of fields that sentences have but that are no words; not as a part of what somebody has named so.
_NAMES = re.compile(
    rf"'[^']*'|(?<![\w./:@-])({'|'.join(sorted(name for name in FIELDS if '_' in name))}|mem|shm)(?![\w/@-]|[.:]\w)"
)


def label_of(name: str) -> str:
    """Return what the page calls a field."""
    return _LABELS.get(name, name)


def with_labels(text: str) -> str:
    """Return a sentence with what the page calls the fields that it names."""
    return _NAMES.sub(lambda found: f"“{label_of(found[1])}”" if found[1] else found[0], text)


def _literals(annotation: object) -> Sequence[str]:
    found: list[str] = []
    for argument in get_args(annotation):
        found += _literals(argument) if get_args(argument) else [argument] if isinstance(argument, str) else []
    return found


BESIDE = (*FIELDS, *OTHERS)

"""The fields of the launch form: those of the session spec, with the spec's own help."""

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
    FormField("cpu", "CPU"),
    FormField("mem", "Memory"),
    FormField("shm", "Shared memory"),
    FormField("disk", "Disk limit"),
    FormField("fgpu", "fGPU (a share of a GPU)"),
    FormField("gpu", "GPU (whole)"),
    FormField("gpu_models", "GPU model", Kind.NAMES, options="gpu_models"),
)
CLUSTER_MODE = FormField("cluster_mode", "Cluster mode", Kind.CHOICE)
PLACE = (
    FormField("resource_group", "Resource group", options="groups"),
    FormField("project", "Project"),
    FormField("priority", "Priority"),
    FormField("time_limit", "Time limit"),
)
START = (
    FormField("type", "Type", Kind.CHOICE),
    FormField("command", "Start-up command", Kind.LONG),
    FormField("run_on", "Runs in", Kind.CHOICE),
    FormField("workdir", "Working directory"),
    FormField("bootstrap", "Bootstrap script", Kind.LONG),
    FormField("input", "Input", Kind.LONG),
    FormField("output", "Output file"),
    FormField("error", "File of standard error"),
)
PUBLISH = FormField("publish", "Published ports", Kind.NAMES)
DOT_FOLDERS = FormField("dot_folders", "Mount my dot folders", Kind.CHECK)
ADVANCED = (
    FormField("begin", "Begin"),
    FormField("hold", "Hold", Kind.CHECK),
    FormField("after", "Start after these have started", Kind.NAMES),
    FormField("after_ok", "Start after success of these", Kind.NAMES),
    FormField("after_any", "Start after the end of these", Kind.NAMES),
    FormField("array", "Array"),
    FormField("agents", "Agents", Kind.NAMES, options="agents"),
    FormField("exclude_agents", "Excluded agents", Kind.NAMES, options="agents"),
    FormField("labels", "Agent labels", Kind.LINES, hint="NAME=VALUE that its agents must have, one per line"),
    FormField("topology", "Topology", Kind.CHOICE),
    FormField("roles", "Roles", Kind.LINES, hint="one per line, besides main: NAME:REPLICAS[,cpu=…,mem=…,image=…]"),
    FormField("local_rank", "Local rank", Kind.CHOICE),
    FormField("tasks", "Tasks"),
    FormField("slurm_env", "Slurm's variables", Kind.CHECK),
    FormField("requeue", "Requeue", Kind.CHECK),
    FormField("preemptible", "Preemptible", Kind.CHECK),
    FormField("idle_timeout", "Idle timeout"),
    FormField("no_idle_check", "No idle check", Kind.CHECK),
    FormField("callback", "Callback"),
)
IMAGE = FormField("image", "Image", options="images")
NAME = FormField("name", "Session name")
CLUSTER_SIZE = FormField("cluster_size", "Cluster size")
FIELDS: Mapping[str, FormField] = {
    field.name: field
    for field in (
        *(IMAGE, NAME, CLUSTER_SIZE, CLUSTER_MODE, PUBLISH, DOT_FOLDERS),
        *(*RESOURCES, *PLACE, *START, *ADVANCED),
    )
}
# Fields with rows or boxes of their own, and fields that are not in the spec.
OTHERS = ("count", "mounts", "env", "secrets", "apps", "more")


def _literals(annotation: object) -> Sequence[str]:
    found: list[str] = []
    for argument in get_args(annotation):
        found += _literals(argument) if get_args(argument) else [argument] if isinstance(argument, str) else []
    return found


BESIDE = (*FIELDS, *OTHERS)

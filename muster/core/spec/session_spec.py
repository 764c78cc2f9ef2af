"""The session spec: one definition for flags, file, module and schema.

Each field carries its help text and, where the command line has it, its flag; `muster submit`, the session file,
`#MUSTER` lines, `library/cluster_session.py` and `muster submit --schema` are all made from this model.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from muster.core.spec.apps import AppFields
from muster.core.spec.base import LEFT_OUT, MAX_ARGUMENT_BYTES, Argument, Bounds, flag
from muster.core.spec.end_signal import EndSignalFields
from muster.core.spec.gpu_classes import GpuClassFields
from muster.core.spec.idle import IdleFields
from muster.core.spec.log_files import LogFields
from muster.core.spec.mounts import HOME, FolderFields, MountSpec
from muster.core.spec.roles import MAX_IMAGE, KernelRole, RoleSpec, resource_errors
from muster.core.spec.scheduling import SchedulingFields
from muster.core.spec.startup import StartupFields
from muster.core.spec.values import MAX_KERNELS, Bytes, ClusterSize, Milli, assignments, invalid
from muster.core.values.errors import FieldError
from muster.core.values.slots import Slots

MAX_TASKS = 100_000
MAX_TASKS_PER_KERNEL = 1000
MAX_MOUNTS = 100
MAX_SCRIPT_BYTES = 1 << 20
MAX_KEY_BYTES = 64 << 10
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
ENV_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTO_A_FOLDER = "put it into a data folder, and read it from there"


class SessionSpec(
    AppFields,
    EndSignalFields,
    FolderFields,
    GpuClassFields,
    IdleFields,
    LogFields,
    SchedulingFields,
    StartupFields,
):
    """The spec that a user submits."""

    NAMELESS: ClassVar[str] = ""

    name: str = Field(
        default=NAMELESS,
        description="name of the session; made up if not given",
        json_schema_extra=flag("--name", "-n", metavar="NAME"),
    )
    image: str = Field(
        default="",
        max_length=MAX_IMAGE,
        description="image of every kernel, by catalog name or reference; the site's default if not given",
        json_schema_extra=flag("--image", "-i", metavar="IMAGE"),
    )
    type: Literal["interactive", "batch"] | None = Field(
        default=None,
        description="interactive runs until it is ended, batch until its command ends; batch if there is a command",
        json_schema_extra=flag("--type"),
    )
    command: Argument | None = Field(
        default=None,
        description="shell command of a batch session",
        json_schema_extra=flag("--command", "-c", metavar="COMMAND"),
    )
    script: Annotated[str, Bounds(MAX_SCRIPT_BYTES, remedy=_INTO_A_FOLDER)] | None = Field(
        default=None, description="text of a job script, run instead of a command"
    )
    run_on: Literal["main", "all"] = Field(
        default="main", description="kernels that run the command", json_schema_extra=flag("--on")
    )
    cluster_size: ClusterSize = Field(
        default=None,
        description="number of kernels; a range such as 4-8 starts with as many as there is room for",
        json_schema_extra=flag("--cluster-size", "-N", metavar="N"),
    )
    cluster_mode: Literal["single-node", "multi-node"] = Field(
        default="single-node",
        description="all kernels on one agent, or over several where one cannot hold them",
        json_schema_extra=flag("--cluster-mode", "-m"),
    )
    roles: tuple[RoleSpec, ...] = Field(
        default=(),
        max_length=20,
        description="roles beside main, such as ps:2 or worker:4,cpu=2,mem=4G,image=torch,command=…",
        json_schema_extra=flag("--role", metavar="ROLE", multiple=True),
    )
    cpu: Milli = Field(
        default=1000, description="CPU cores of each kernel", json_schema_extra=flag("--cpu", metavar="CORES")
    )
    mem: Bytes = Field(
        default=1 << 30, description="memory of each kernel", json_schema_extra=flag("--mem", metavar="BYTES")
    )
    shm: Bytes | None = Field(
        default=None,
        description="shared memory of each kernel, a part of its memory; half of it if not given",
        json_schema_extra=flag("--shm", metavar="BYTES"),
    )
    disk: Bytes | None = Field(
        default=None,
        ge=1 << 20,
        description="what each kernel may write outside its mounts; the site's limit if not given",
        json_schema_extra=flag("--disk", metavar="BYTES"),
    )
    gpu: int = Field(
        default=0, ge=0, le=64, description="whole GPUs of each kernel", json_schema_extra=flag("--gpu", metavar="N")
    )
    fgpu: Milli = Field(
        default=0, description="fGPU units of each kernel", json_schema_extra=flag("--fgpu", metavar="UNITS")
    )
    env: Annotated[dict[str, str], Bounds(MAX_ARGUMENT_BYTES, remedy=_INTO_A_FOLDER)] = Field(
        default_factory=dict,
        description="environment variable, such as LR=0.1",
        json_schema_extra=flag("--env", "-e", metavar="NAME=VALUE", multiple=True),
    )
    mounts: tuple[MountSpec, ...] = Field(
        default=(),
        max_length=MAX_MOUNTS,
        description="data folder in every kernel, such as data, data:/data or data:/data:ro",
        json_schema_extra=flag("--mount", "-v", metavar="FOLDER", multiple=True),
    )
    requeue: bool = Field(
        default=False,
        description="queue it again when an agent of it is lost or it is preempted, instead of ending it",
        json_schema_extra=flag("--requeue"),
    )
    distributed_env: bool = Field(
        default=True, description="set WORLD_SIZE, MASTER_ADDR, TF_CONFIG, … in sessions of two kernels or more"
    )
    local_rank: Literal["agent", "kernel"] = Field(
        default="agent",
        description="LOCAL_RANK counts the session's kernels on one agent, or is 0 in each kernel",
        json_schema_extra=flag("--local-rank"),
    )
    tasks: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TASKS,
        description="processes that `muster-run` starts, over all kernels; one in each if not given",
        json_schema_extra=flag("--tasks", metavar="N"),
    )
    tasks_per_kernel: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TASKS_PER_KERNEL,
        description="processes that `muster-run` starts in each kernel, however many there are",
        json_schema_extra=flag("--tasks-per-kernel", metavar="N"),
    )
    slurm_env: bool = Field(
        default=False,
        description="set SLURM_JOB_ID, SLURM_PROCID, …, and provide srun; the default for scripts with #SBATCH lines",
        json_schema_extra=flag("--slurm-env/--no-slurm-env"),
    )
    ssh_keys: Annotated[tuple[str, ...], Bounds(MAX_KEY_BYTES)] = Field(
        default=(), description="public keys that may log in to main1 from outside"
    )

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        if value and not NAME_PATTERN.fullmatch(value):
            raise invalid(
                f"{value!r} is not a session name", "use letters, digits, dots, dashes and underscores, 63 at most"
            )
        return value

    @field_validator("env", mode="before")
    @classmethod
    def _environment(cls, value: object) -> object:
        return assignments(value, _check_variable)

    @field_validator("mounts")
    @classmethod
    def _distinct_targets(cls, value: tuple[MountSpec, ...]) -> tuple[MountSpec, ...]:
        for target in _repeated([mount.target for mount in value]):
            raise invalid(f"two folders are mounted at {target}", "give one of them another target")
        return value

    @field_validator("roles")
    @classmethod
    def _distinct_roles(cls, value: tuple[RoleSpec, ...]) -> tuple[RoleSpec, ...]:
        for name in _repeated([role.name for role in value]):
            raise invalid(f"role {name} is given twice", "give it once, with the number of its replicas")
        for role in value:
            if role.name == "main" and role.replicas != 1:
                raise invalid("a session has one main container", "write main:1 and give the others another role")
            if role.name == "main" and role.command is not None:
                raise invalid("the role main has a command", "give main's command as the session's own")
        return value

    @field_validator("ssh_keys")
    @classmethod
    def _public_keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in value:
            if len(key.split()) < 2 or "\n" in key.strip() or "PRIVATE" in key:
                raise invalid("that is not a public key", "give one line such as ssh-ed25519 AAAA… me@laptop")
        return tuple(key.strip() for key in value)

    @model_validator(mode="after")
    def _fields_agree(self, info: ValidationInfo) -> Self:
        if info.context is None:
            # A stored spec was checked when it was submitted, and is not checked again (bounds: base.py).
            return self
        left_out: frozenset[str] = info.context.get(LEFT_OUT, frozenset())
        errors = [error for about, found in self._disagreements() if not left_out & about for error in found]
        if errors:
            raise PydanticCustomError("disagreements", "the fields do not agree", {"errors": errors})
        return self

    def _disagreements(self) -> Iterator[tuple[set[str], Iterator[FieldError]]]:
        """Yield the errors of fields that do not agree, each kind with the fields that it follows from."""
        command, size = {"type", "command", "script"}, {"roles", "cluster_size"}
        yield command, self._command_errors()
        yield size, self._size_errors()
        yield {"tasks", "tasks_per_kernel", *size}, self._task_errors()
        yield {"cpu", "mem", "shm", "gpu", "fgpu", *size}, self._resource_errors()
        classes = {"fgpu_limit", "best_effort"}
        yield {"gpu", "fgpu", *classes, *size}, self._class_errors(role.slots for role in self.kernel_roles())
        yield {"agents", "exclude_agents"}, self._constraint_errors()
        yield {"no_idle_check", "idle_timeout"}, self._idle_errors()
        has_command = self.command is not None or self.script is not None
        yield (
            {"signal", "time_limit", *command},
            self._signal_errors(has_command=has_command, time_limit=self.time_limit),
        )
        yield {"apps", "publish"}, self._app_errors()
        yield {"secrets", "env", "input", *command}, self._startup_errors()
        yield {"output", "error", "workdir", "mounts", "dot_folders", *command}, self._log_errors(HOME)

    def _command_errors(self) -> Iterator[FieldError]:
        commands = self.command is not None or self.script is not None
        if self.command is not None and not self.command.strip():
            yield FieldError("command", "it is empty", "write the command, or leave it out")
        if self.command is not None and self.script is not None:
            yield FieldError("command", "command and script are both given", "give one of them")
        if self.type == "batch" and not commands:
            yield FieldError("type", "a batch session needs a command", "give a command or a job script")
        if self.type == "interactive" and commands:
            yield FieldError(
                "type", "an interactive session runs no command", "leave the command out, or choose type batch"
            )

    def _size_errors(self) -> Iterator[FieldError]:
        listed = 1 + sum(role.replicas for role in self.roles if role.name != "main")
        least, most = _ends(self.cluster_size) or (listed, listed)
        if listed > MAX_KERNELS:
            yield FieldError(
                "roles", f"a session of {listed} containers is too large", f"ask for {MAX_KERNELS} at the most"
            )
        elif least < listed:
            remedy = f"begin it at {listed} or more" if least < most else f"make it {listed} or more"
            yield FieldError(
                "cluster_size",
                f"{least} is less than main and the roles' replicas, {listed}",
                f"leave cluster_size out, or {remedy}",
            )
        elif most > listed and any(role.name == "sub" for role in self.roles):
            yield FieldError(
                "cluster_size",
                f"{self.cluster_size} is more than the roles add up to",
                "leave cluster_size out, or raise sub's replicas",
            )

    def _task_errors(self) -> Iterator[FieldError]:
        kernels = self.sizes[1]
        if self.tasks is not None and self.tasks_per_kernel is not None:
            yield FieldError("tasks", "tasks and tasks_per_kernel are both given", "give one of them")
        if self.tasks is not None and self.tasks < kernels <= MAX_KERNELS:
            yield FieldError(
                "tasks", f"{self.tasks} are less than the session's {kernels} containers", f"write {kernels} or more"
            )

    def _resource_errors(self) -> Iterator[FieldError]:
        listed = {role.name: role for role in self.roles}
        said: set[str] = set()
        for role in self.kernel_roles(self.sizes[1]):
            own = listed.get(role.name)
            for error in resource_errors(role):
                inherited = own is None or getattr(own, error.field) is None
                if inherited and error.field in said:
                    continue
                if own is None:
                    said.add(error.field)
                    yield error
                else:
                    yield FieldError("roles", f"{error.field} of role {role.name}: {error.problem}", error.remedy)

    @property
    def is_batch(self) -> bool:
        return self.type == "batch" or (self.type is None and (self.command is not None or self.script is not None))

    @property
    def sizes(self) -> tuple[int, int]:
        """Return with how many kernels it runs at least, and at most."""
        listed = 1 + sum(role.replicas for role in self.roles if role.name != "main")
        least, most = _ends(self.cluster_size) or (listed, listed)
        return max(least, listed), max(most, listed)

    @property
    def is_elastic(self) -> bool:
        least, most = self.sizes
        return least < most

    def kernel_roles(self, size: int | None = None) -> tuple[KernelRole, ...]:
        """Return the roles in rank order: main, then as listed, then `sub` for the rest of `size`, or of the least."""
        listed = {role.name: role for role in self.roles}
        main = listed.pop("main", RoleSpec(name="main"))
        roles = [main, *listed.values()]
        rest = (size or self.sizes[0]) - sum(role.replicas for role in roles)
        if rest > 0:
            roles.append(RoleSpec(name="sub", replicas=rest))
        return tuple(self._resolved(role) for role in roles)

    def _resolved(self, role: RoleSpec) -> KernelRole:
        def own(name: str) -> Any:  # noqa: ANN401 - the field's own type
            value = getattr(role, name)
            return getattr(self, name) if value is None else value

        shm: int | None = own("shm")
        wants_no_gpu = role.fgpu is not None and role.gpu is None
        wants_no_fgpu = role.gpu is not None and role.fgpu is None
        return KernelRole(
            name=role.name,
            replicas=role.replicas,
            image=own("image"),
            command=role.command,
            shm=own("mem") // 2 if shm is None else shm,
            slots=Slots(
                cpu=own("cpu"),
                mem=own("mem"),
                gpu=0 if wants_no_gpu else own("gpu"),
                fgpu=0 if wants_no_fgpu else own("fgpu"),
            ),
        )


def _ends(size: int | str | None) -> tuple[int, int] | None:
    """Return the least and the most of a cluster size, which are equal unless it is a range."""
    if size is None:
        return None
    least, _, most = str(size).partition("-")
    return int(least), int(most or least)


def _check_variable(name: str, content: object) -> None:
    del content
    if not ENV_PATTERN.fullmatch(name):
        raise invalid(f"{name!r} is not a variable name", "use letters, digits and underscores, as in BATCH_SIZE=64")


def _repeated(values: list[str]) -> list[str]:
    return sorted({value for value in values if values.count(value) > 1})

"""The session spec's roles: groups of kernels that differ from the others."""

import re
from collections.abc import Iterator

from pydantic import Field, field_validator, model_validator

from muster.core.spec.base import Argument, SpecModel
from muster.core.spec.values import MAX_KERNELS, Bytes, Milli, invalid
from muster.core.values.errors import FieldError
from muster.core.values.slots import Slots

MAX_IMAGE = 1024
ROLE_PATTERN = re.compile(r"[a-z](?:[a-z-]{0,30}[a-z])?")


class RoleSpec(SpecModel):
    """A named group of kernels. Short form: `NAME:REPLICAS[,cpu=…][,mem=…][,image=…][,command=…]`."""

    name: str = Field(description="such as ps or worker; kernels are called ps1, ps2, …")
    replicas: int = Field(default=1, ge=1, le=MAX_KERNELS, description="how many kernels the role has")
    image: str | None = Field(
        default=None, max_length=MAX_IMAGE, description="image of this role; the session's by default"
    )
    command: Argument | None = Field(default=None, description="shell command of this role; none by default")
    cpu: Milli | None = Field(default=None, description="CPU cores of each kernel of this role")
    mem: Bytes | None = Field(default=None, description="memory of each kernel of this role")
    shm: Bytes | None = Field(default=None, description="shared memory of each kernel of this role")
    gpu: int | None = Field(default=None, ge=0, le=64, description="whole GPUs of each kernel of this role")
    fgpu: Milli | None = Field(default=None, description="fGPU units of each kernel of this role")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        head, *settings = value.split(",")
        name, _, replicas = head.partition(":")
        fields: dict[str, object] = {"name": name, "replicas": replicas or 1}
        for setting in settings:
            key, equals, content = setting.partition("=")
            if not equals:
                raise invalid(f"{setting!r} has no =", "write settings such as cpu=2,mem=4G")
            fields[key] = content
        return fields

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        if not ROLE_PATTERN.fullmatch(value):
            raise invalid(f"{value!r} is not a role name", "use lower-case letters and dashes, such as ps or worker")
        return value


class KernelRole(SpecModel):
    """A role with nothing left to fill in."""

    name: str
    replicas: int
    image: str
    command: str | None
    shm: int
    slots: Slots


def resource_errors(role: KernelRole) -> Iterator[FieldError]:
    if role.shm > role.slots.mem:
        yield FieldError("shm", "it is more than mem", "shared memory is a part of memory: raise mem or lower shm")
    if role.slots.mem < 32 << 20:
        yield FieldError(
            "mem", "it is less than 32M", "ask for 32M or more; a bare number is bytes, 4G is four gibibytes"
        )
    if role.slots.cpu < 10:
        yield FieldError("cpu", "it is less than 0.01", "ask for 0.01 or more")
    if role.slots.gpu and role.slots.fgpu:
        yield FieldError("gpu", "fGPU is asked for as well", "ask for one of them: a whole GPU or a share")

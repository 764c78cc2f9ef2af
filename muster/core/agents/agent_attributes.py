"""What the inventory says of an agent to the scheduler."""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from muster.core.agents.gpu_health import SYMPTOMS, HealthVerdict, is_symptom, is_the_programs
from muster.core.agents.gpu_model import is_of_model
from muster.core.spec.base import SpecModel
from muster.core.spec.scheduling import LABEL_PATTERN
from muster.core.spec.values import Bytes, Milli, invalid
from muster.core.values.errors import FieldError
from muster.core.values.units import parse_milli

DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,254}")
_NAME_REMEDY = "write letters, digits, `_`, `.` and `-`, beginning with a letter or a digit"
_PLACE_REMEDY = "write letters, digits and `_./:-`, beginning with a letter or a digit"
_LABEL_REMEDY = "write letters, digits and `_./-`, beginning and ending with a letter or a digit, 63 at the most"
_MOST_UNITS = 1000
_MOST_OVERCOMMIT = 16


class FgpuProvider(StrEnum):
    """The means by which a host's GPUs are cut."""

    SHIM = "shim"
    MPS = "mps"
    MIG = "mig"
    WHOLE = "whole"


class FgpuCompute(StrEnum):
    """The rule for compute: FAIR lends idle parts to others, HARD does not, and NONE limits memory only."""

    FAIR = "fair"
    HARD = "hard"
    NONE = "none"


class FgpuChoice(StrEnum):
    """The rule for which GPU of a host a share is on. POLICY leaves that to the scheduler's policy."""

    POLICY = "policy"
    FILL = "fill"
    SPREAD = "spread"
    FRAGMENTATION = "fragmentation"


class FgpuOverCap(StrEnum):
    """The treatment of a session whose kernel uses more GPU memory than its share."""

    REPORT = "report"
    END = "end"


class FgpuDevices(StrEnum):
    """The engine's driver that gives GPUs to containers. AUTO is CDI for a container whose GPUs all come by that."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    CDI = "cdi"


def _plain(value: object) -> object:
    """Return the value as text if it is a number: YAML makes numbers of names such as `12`."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _resource_group(value: object) -> str:
    name = _plain(value)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{value!r} is no name", _NAME_REMEDY)
    return name


def _place(value: object) -> str:
    name = _plain(value)
    if not isinstance(name, str) or (name and not _PLACE.fullmatch(name)):
        raise invalid(f"{value!r} is no name", _PLACE_REMEDY)
    return name


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise invalid(f"{value!r} is not a mapping", "write names with values, as in {gpu: a100, disk: ssd}")
    labels, errors = {}, []
    for name, given in value.items():
        text = str(given).lower() if isinstance(given, bool) else _plain(given)
        if not isinstance(name, str) or not LABEL_PATTERN.fullmatch(name):
            errors.append(FieldError("labels", f"{name!r} is no name of a label", _LABEL_REMEDY))
        elif not isinstance(text, str):
            errors.append(FieldError(f"labels.{name}", f"{given!r} is not text", "put it in quotes"))
        elif not text.isprintable() or text.strip() != text or not 0 < len(text) < 256:
            problem = f"{given!r} is no value of a label"
            errors.append(FieldError(f"labels.{name}", problem, "write one line of up to 255 characters"))
        else:
            labels[name] = text
    _refuse(errors)
    return labels


def _overcommit(value: object) -> int:
    remedy = "write a factor above 0, such as 2 or 1.5"
    try:
        factor = parse_milli(value)
    except ValueError as error:
        raise invalid(str(error), remedy) from None
    if not factor:
        raise invalid("it leaves no cores", remedy)
    return factor


def _fgpu_overcommit(value: object) -> int:
    remedy = f"write a factor from 1 to {_MOST_OVERCOMMIT}, such as 1.5"
    try:
        factor = parse_milli(value)
    except ValueError as error:
        raise invalid(str(error), remedy) from None
    if not 1000 <= factor <= _MOST_OVERCOMMIT * 1000:
        raise invalid(f"{value!r} is no such factor", remedy)
    return factor


def _one_of(choices: type[StrEnum]) -> Callable[[object], object]:
    def chosen(value: object) -> object:
        if value not in tuple(choices):
            raise invalid(f"{value!r} is not known", f"write {' or '.join(choices)}")
        return value

    return chosen


def _units_by_model(value: object) -> dict[str, int]:
    units, errors = {}, []
    for model, number in (value if isinstance(value, Mapping) else {DEFAULT: value}).items():
        text = str(number)
        if text.isdecimal() and int(text) <= _MOST_UNITS:
            units[str(model)] = int(text)
        else:
            field = f"units_per_gpu.{model}" if isinstance(value, Mapping) else "units_per_gpu"
            problem = f"{number!r} is not a whole number from 0 to {_MOST_UNITS}"
            remedy = "write one number, or one for each GPU model as in {A100: 4, default: 2}"
            errors.append(FieldError(field, problem, remedy))
    _refuse(errors)
    return units


def _gpu_health(value: object) -> dict[str, HealthVerdict]:
    if not isinstance(value, Mapping):
        raise invalid(f"{value!r} is not a mapping", "write verdicts by symptom, as in {xid-94: ignore, ecc: warn}")
    verdicts, errors = {}, []
    for name, given in value.items():
        field = f"gpu_health.{name}"
        if not isinstance(name, str) or not is_symptom(name):
            known = ", ".join(code for code in SYMPTOMS if not code.startswith("xid"))
            errors.append(FieldError(field, "it is no symptom", f"write {known}, xid or xid-NUMBER"))
        elif given not in tuple(HealthVerdict):
            errors.append(FieldError(field, f"{given!r} is not known", f"write {', '.join(HealthVerdict)}"))
        elif is_the_programs(name) and given != HealthVerdict.IGNORE:
            problem = "users' programs cause it, and no user may take a GPU from the others"
            errors.append(FieldError(field, problem, "leave it out"))
        else:
            verdicts[name] = HealthVerdict(given)
    _refuse(errors)
    return verdicts


def _refuse(errors: list[FieldError]) -> None:
    if errors:
        raise PydanticCustomError("disagreements", "several things are wrong", {"errors": errors})


class AgentAttributes(SpecModel):
    """The attributes of an agent. `cpu_overcommit` and `fgpu_overcommit` are in thousandths.

    `units_per_gpu` is by GPU model, or `default`. `gpu_health` has the site's verdicts on symptoms of GPUs.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    resource_group: Annotated[str, BeforeValidator(_resource_group)] = DEFAULT
    labels: Annotated[dict[str, str], BeforeValidator(_labels)] = Field(default_factory=dict)
    rack: Annotated[str, BeforeValidator(_place)] = ""
    zone: Annotated[str, BeforeValidator(_place)] = ""
    reserved_cpu: Milli = 0
    reserved_mem: Bytes = 0
    cpu_overcommit: Annotated[int, BeforeValidator(_overcommit)] = 1000
    units_per_gpu: Annotated[dict[str, int], BeforeValidator(_units_by_model)] = Field(default_factory=dict)
    fgpu_provider: Annotated[FgpuProvider, BeforeValidator(_one_of(FgpuProvider))] = FgpuProvider.SHIM
    fgpu_compute: Annotated[FgpuCompute, BeforeValidator(_one_of(FgpuCompute))] = FgpuCompute.FAIR
    fgpu_choice: Annotated[FgpuChoice, BeforeValidator(_one_of(FgpuChoice))] = FgpuChoice.POLICY
    fgpu_over_cap: Annotated[FgpuOverCap, BeforeValidator(_one_of(FgpuOverCap))] = FgpuOverCap.REPORT
    fgpu_devices: Annotated[FgpuDevices, BeforeValidator(_one_of(FgpuDevices))] = FgpuDevices.AUTO
    fgpu_context_bytes: Bytes = 300 << 20
    fgpu_overcommit: Annotated[int, BeforeValidator(_fgpu_overcommit)] = 1000
    gpu_health: Annotated[dict[str, HealthVerdict], BeforeValidator(_gpu_health)] = Field(default_factory=dict)

    def units_of(self, model: str) -> int:
        """Return into how many units a GPU of this model is cut. The most precise entry that names it counts."""
        named = [name for name in self.units_per_gpu if name != DEFAULT and is_of_model(model, name)]
        return self.units_per_gpu.get(max(named, key=len, default=DEFAULT), 0)

"""The part of the session spec that says how much of a GPU's time its shares get beside what is guaranteed to them."""

from collections.abc import Iterable, Iterator

from pydantic import Field

from muster.core.spec.base import SpecModel, flag
from muster.core.spec.values import Milli
from muster.core.values.errors import FieldError
from muster.core.values.slots import Slots
from muster.core.values.units import format_milli


class GpuClassFields(SpecModel):
    fgpu_limit: Milli | None = Field(
        default=None,
        description="the most fGPU that each kernel computes with while others leave time; a whole GPU if not given",
        json_schema_extra=flag("--fgpu-limit", metavar="UNITS"),
    )
    best_effort: bool = Field(
        default=False,
        description="compute with its fGPU only while no other session needs that GPU",
        json_schema_extra=flag("--best-effort"),
    )

    def _class_errors(self, slots: Iterable[Slots]) -> Iterator[FieldError]:
        """Yield what is wrong with the class of a session whose kernels have these slots."""
        most = max(slot.fgpu for slot in slots)
        for name, given in (("fgpu_limit", self.fgpu_limit is not None), ("best_effort", self.best_effort)):
            if given and not most:
                yield FieldError(name, "no container has a share of a GPU", "give fGPU as well, such as 0.5")
        if self.fgpu_limit is not None and self.best_effort:
            yield FieldError("fgpu_limit", "best_effort is given as well", "give one of them")
        if self.fgpu_limit is not None and self.fgpu_limit < most:
            problem = f"{format_milli(self.fgpu_limit)} is less than its fGPU, {format_milli(most)}"
            yield FieldError("fgpu_limit", problem, f"write {format_milli(most)} or more")

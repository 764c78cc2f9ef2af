"""The health of GPUs: the signs of trouble in an agent's reports, and which of them keep new sessions off a GPU."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from muster.contract.report import GpuHealthReport, GpuReport, Report, XidReport

MISSING = "missing"
_MOST_MISSING = 64
_XID = re.compile(r"xid-(\d{1,5})")
# What a tenant's program can cause by itself: if these counted, a user could take GPUs away from all others.
PROGRAM_XIDS = frozenset({13, 31, 43, 45})
_XIDS = {
    32: "corrupted push buffer",
    38: "firmware error of the driver",
    48: "memory error that cannot be corrected",
    61: "microcontroller breakpoint",
    62: "microcontroller halted",
    63: "memory row remapped",
    64: "memory row cannot be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered memory error",
    143: "the GPU cannot be initialised",
}
_QUARANTINING_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140, 143})


class HealthVerdict(StrEnum):
    """What follows from a symptom: the GPU gets no new sessions, it is only shown, or nothing."""

    QUARANTINE = "quarantine"
    WARN = "warn"
    IGNORE = "ignore"


_V = HealthVerdict
SYMPTOMS: Mapping[str, HealthVerdict] = {
    MISSING: _V.QUARANTINE,
    "recovery": _V.QUARANTINE,
    "remap-failed": _V.QUARANTINE,
    "remap-pending": _V.WARN,
    "ecc": _V.WARN,
    "throttled": _V.WARN,
    "stranger": _V.WARN,
    "xid": _V.WARN,
    **{f"xid-{number}": _V.QUARANTINE for number in sorted(_QUARANTINING_XIDS)},
}
"""The verdicts where the site says nothing. `xid` stands for all numbers that are not listed."""


def verdict_of(code: str, site: Mapping[str, HealthVerdict]) -> HealthVerdict:
    """Return what follows from a symptom. The site's table comes first; what programs cause is no GPU's fault."""
    if is_the_programs(code):
        return _V.IGNORE
    return site.get(code) or SYMPTOMS.get(code) or site.get("xid", SYMPTOMS["xid"])


def is_the_programs(code: str) -> bool:
    """Return whether a symptom is the fault of a user's program, whatever the site says."""
    found = _XID.fullmatch(code)
    return found is not None and int(found[1]) in PROGRAM_XIDS


def is_symptom(code: str) -> bool:
    """Return whether a site's table can name it."""
    return code in SYMPTOMS or _XID.fullmatch(code) is not None


class SymptomMark(NamedTuple):
    """What identifies one appearance of a symptom: a new or worse one has another mark."""

    code: str
    level: int
    since: float


@dataclass(frozen=True, slots=True)
class Symptom:
    """A sign of trouble that is present. `level` changes when it gets worse, and `since` is when it last changed."""

    code: str
    detail: str
    level: int
    since: float

    @property
    def mark(self) -> SymptomMark:
        return SymptomMark(self.code, self.level, self.since)


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What reports have shown of the health of an agent's GPUs, by physical GPU.

    `missing` are devices that earlier reports named and the last one does not. Xids count until the host is rebooted:
    its log may forget them before.
    """

    boot_id: str | None = None
    symptoms: Mapping[str, tuple[Symptom, ...]] = field(default_factory=dict, hash=False)
    missing: tuple[GpuReport, ...] = ()

    def after(self, before: Sequence[GpuReport], report: Report, now: float) -> "GpuRecord":
        """Return the record after a new report; `before` are the GPUs of the one before that."""
        answering = {gpu.physical_uuid for gpu in report.gpus}
        # Of one in MIG mode without instances there is no GPU to report, only its health.
        answering |= {entry.uuid for entry in report.gpu_health if entry.uuid and not entry.problem}
        gone = {gpu.uuid: gpu for gpu in (*before, *self.missing) if gpu.physical_uuid not in answering}
        missing = tuple(gone.values())[:_MOST_MISSING]
        same_boot = report.boot_id == self.boot_id
        signs: dict[str, dict[str, _Sign]] = {uuid: {} for uuid in answering}
        signs |= {gpu.physical_uuid: {MISSING: _missing_sign(gpu, report.gpu_health)} for gpu in missing}
        by_address = {gpu.address: gpu.physical_uuid for gpu in missing if gpu.address}
        for entry in report.gpu_health:
            uuid = entry.uuid or by_address.get(entry.address or "") or ""
            if uuid in signs:
                signs[uuid].update((sign.code, sign) for sign in _signs(entry))
        symptoms = {}
        for uuid, present in sorted(signs.items()):
            before_it = self.symptoms.get(uuid, ())
            logged = {s.code: _Sign(s.code, s.level, s.detail) for s in before_it if _XID.fullmatch(s.code)}
            all_signs = {**logged, **present} if same_boot else present
            found = [_symptom(sign, before_it, now, same_boot=same_boot) for _, sign in sorted(all_signs.items())]
            if found:
                symptoms[uuid] = tuple(found)
        return GpuRecord(report.boot_id, symptoms, missing)

    def unaccepted(self, uuid: str, accepted: "AcceptedSymptoms") -> tuple[Symptom, ...]:
        """Return the symptoms of a physical GPU but for those with which an operator has put it back into service."""
        marks = set(accepted.get(uuid, ()))
        return tuple(symptom for symptom in self.symptoms.get(uuid, ()) if symptom.mark not in marks)


AcceptedSymptoms = Mapping[str, tuple[SymptomMark, ...]]
"""By physical GPU, the symptoms with which an operator has put it back into service."""


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """What keeps new sessions off a GPU, and what else is wrong with it, each in words; empty where nothing is."""

    quarantine: str = ""
    warning: str = ""
    codes: tuple[str, ...] = ()


def health_of(symptoms: Iterable[Symptom], site: Mapping[str, HealthVerdict]) -> GpuHealth:
    """Return what these symptoms mean by the site's table; `codes` are those that quarantine."""
    verdicts = [(symptom, verdict_of(symptom.code, site)) for symptom in symptoms]
    grave = [symptom for symptom, verdict in verdicts if verdict is _V.QUARANTINE]
    slight = [symptom for symptom, verdict in verdicts if verdict is _V.WARN]
    return GpuHealth(
        "; ".join(symptom.detail for symptom in grave),
        "; ".join(symptom.detail for symptom in slight),
        tuple(symptom.code for symptom in grave),
    )


class _Sign(NamedTuple):
    """A symptom as one report shows it."""

    code: str
    level: int
    detail: str


def _symptom(sign: _Sign, before: Iterable[Symptom], now: float, *, same_boot: bool) -> Symptom:
    known = next((symptom for symptom in before if symptom.code == sign.code), None)
    # Counters and the log's numbers begin anew with a boot, and counters with the driver.
    is_the_same = known is not None and sign.level == known.level and (same_boot or not sign.level)
    return Symptom(sign.code, sign.detail, sign.level, known.since if known and is_the_same else now)


def _missing_sign(gpu: GpuReport, entries: Iterable[GpuHealthReport]) -> _Sign:
    for entry in entries:
        same = entry.uuid == gpu.physical_uuid or (entry.uuid is None and _is_at(entry, gpu))
        if entry.problem and same:
            return _Sign(MISSING, 0, f"missing: {entry.problem}")
    return _Sign(MISSING, 0, "missing: the driver does not list it any more")


def _is_at(entry: GpuHealthReport, gpu: GpuReport) -> bool:
    if entry.address is not None and gpu.address is not None:
        return entry.address == gpu.address
    return entry.index == gpu.index


def _signs(entry: GpuHealthReport) -> Iterator[_Sign]:
    yield from map(_xid_sign, entry.xids)
    if entry.ecc_errors:
        yield _Sign("ecc", entry.ecc_errors, f"{entry.ecc_errors} memory errors that could not be corrected")
    if entry.remap_failed:
        yield _Sign("remap-failed", 0, "a faulty row of its memory cannot be replaced")
    if entry.remap_pending:
        yield _Sign("remap-pending", 0, "a faulty row of its memory is replaced at its next reset")
    if entry.throttled:
        yield _Sign("throttled", 0, f"its clocks are slowed: {', '.join(entry.throttled)}")
    if entry.recovery:
        yield _Sign("recovery", 0, f"the driver asks for: {entry.recovery}")
    if entry.strangers:
        yield _Sign("stranger", 0, f"processes of no session use it: {', '.join(map(str, entry.strangers))}")


def _xid_sign(xid: XidReport) -> _Sign:
    meaning = _XIDS.get(xid.number)
    # Sequence numbers begin at 0, and a level of 0 is one that has none.
    return _Sign(
        f"xid-{xid.number}", xid.sequence + 1, f"Xid {xid.number}: {meaning}" if meaning else f"Xid {xid.number}"
    )

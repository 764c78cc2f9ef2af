"""Traces of other clusters as entries of a workload: by name those of Philly and openb, others by their columns.

- openb: Alibaba's cluster-trace-gpu-v2023, its pod lists.
- philly: Microsoft's philly-traces (Jeon et al., USENIX ATC 2019): `cluster_job_log` as published, in JSON, or a table
  with a line for each of its jobs. It names neither cpu nor memory: each GPU comes with the same amount of both.
"""

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError
from muster.service.questions.imagined_cluster import read_rows

OPENB = "openb"
PHILLY = "philly"
TRACES = (OPENB, PHILLY)
Entry = Mapping[str, Any]
"""What a workload's file would say of a session. Without a `duration`, nobody knows how long the session ran."""

_PLACES = {"arrival": "at", "kernels": "cluster_size", "group": "resource_group"}
_TIMES = frozenset({"arrival", "duration", "start", "end"})
FIELDS = frozenset((*_TIMES, "owner", "kernels", "group", *SessionSpec.model_fields))
"""What a column of a trace may be."""

_COLUMNS = {**_PLACES, "creation_time": "at", "gpu_spec": "gpu_models"}
_UNUSED_COLUMNS = {"qos", "pod_phase", "scheduled_time", "deletion_time"}
_LEAST_MIB = 32
_CPU_OF_A_GPU = 4
_GIB_OF_A_GPU = 32
_MOST_GPUS_OF_AN_AGENT = 8
# More than any cluster has; a number that is no count, such as a date in seconds, is larger.
_MOST_COUNT = 1_000_000
_PHILLY_COLUMNS: Mapping[str, Sequence[str]] = {
    "name": ("jobid", "job_id"),
    "owner": ("user",),
    "project": ("vc",),
    "arrival": ("submitted_time", "submit_time"),
    "start": ("start_time",),
    "end": ("end_time",),
    "duration": ("duration",),
    "gpus": ("gpu_num", "num_gpus", "gpus"),
    "kernels": ("node_num", "num_machines", "machines"),
}


class Seconds(float):
    """A time of a trace. A bare number in a workload's file would be minutes."""


class NoTime(str):
    """A cell of a trace that holds neither seconds nor a date, in a column of times."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Format:
    """How a workload's file is to be read: as the trace of that name, or by its `columns`, field by field.

    Without either, the file's ending and its columns say what it is.
    """

    trace: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


def format_of(trace: str | None, columns: Iterable[str]) -> Format:
    """Return the format that flags ask for. `columns` are FIELD=COLUMN. Raises BadInputError."""
    mapping: dict[str, str] = {}
    for text in columns:
        name, equals, column = (part.strip() for part in text.partition("="))
        if not equals or not column:
            raise BadInputError(f"--column: {text!r} is not FIELD=COLUMN; write such as arrival=submit_time")
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(sorted(FIELDS))}"
            raise BadInputError(f"--column: there is no field {name!r}; {hint}")
        mapping[name] = column
    if mapping and trace:
        raise BadInputError(f"--column: the columns of {trace} are known; leave out --trace or --column")
    if mapping and ("arrival" not in mapping or not ("duration" in mapping or {"start", "end"} <= set(mapping))):
        raise BadInputError("--column: a trace needs arrival, and duration or start and end; add them")
    return Format(trace or "", mapping)


def entries(path: Path, form: Format) -> Iterator[tuple[str, Entry]]:
    """Yield the trace's jobs, each with its place in the file. Raises BadInputError."""
    if form.trace == PHILLY:
        yield from _philly(path)
    elif form.columns:
        for line, row in read_rows(path, needs=form.columns.values()):
            found = {name: row[column] for name, column in form.columns.items() if column in row}
            yield f"line {line}: ", _mapped(found)
    else:
        for line, row in read_rows(path):
            yield f"line {line}: ", _known(row)


def _known(row: Mapping[str, str]) -> Entry:
    """Return the entry of a line whose columns are named as fields, or as openb's."""
    entry: dict[str, Any] = {_COLUMNS.get(name, name): cell for name, cell in row.items()}
    if "deletion_time" in entry and "duration" not in entry:
        began = entry.get("scheduled_time", entry.get("at", "0"))
        entry["duration"] = _difference(entry["deletion_time"], began)
    for name in ("at", "duration", "begin"):
        if name in entry:
            entry[name] = _in_seconds(entry[name])
    if "cpu_milli" in entry:
        entry["cpu"] = f"{entry.pop('cpu_milli')}m"
    if "memory_mib" in entry:
        mib = str(entry.pop("memory_mib"))
        entry["mem"] = f"{max(_LEAST_MIB, int(mib)) if mib.isdecimal() else mib}M"
    if "num_gpu" in entry:
        entry |= _gpus(str(entry.pop("num_gpu")), str(entry.pop("gpu_milli", "1000")))
    if "gpu_models" in entry:
        entry["gpu_models"] = str(entry["gpu_models"]).split("|")
    return {name: cell for name, cell in entry.items() if name not in _UNUSED_COLUMNS}


def _mapped(found: Mapping[str, str]) -> Entry:
    """Return the entry of a line whose columns were mapped to fields."""
    entry: dict[str, Any] = {_PLACES.get(name, name): cell for name, cell in found.items() if name not in _TIMES}
    if "arrival" in found:
        entry["at"] = _in_seconds(found["arrival"])
    if "begin" in found:
        entry["begin"] = _in_seconds(found["begin"])
    if "duration" in found:
        entry["duration"] = _in_seconds(found["duration"])
    elif "start" in found and "end" in found:
        entry["duration"] = _in_seconds(_difference(found["end"], found["start"]))
    if "gpu_models" in entry:
        entry["gpu_models"] = str(entry["gpu_models"]).split("|")
    return entry


def _philly(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the jobs of `cluster_job_log`, which holds a list in JSON, or of a table of them."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if text.lstrip()[:1] not in {"[", "{"}:
        yield from _philly_table(path)
        return
    try:
        logged = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path} is not JSON: {error}") from None
    if not isinstance(logged, list):
        raise BadInputError(f"{path} holds no list of jobs; name the file cluster_job_log of philly-traces")
    for number, job in enumerate(logged):
        if not isinstance(job, Mapping):
            raise BadInputError(f"{path}: job {number} is not a mapping; see the README of philly-traces")
        try:
            yield f"job {number}: ", _philly_job(job)
        except (AttributeError, TypeError):
            raise BadInputError(f"{path}: job {number} is not as the README of philly-traces says") from None


def _philly_job(job: Mapping[str, Any]) -> Entry:
    attempts = job.get("attempts") or ()
    ran = [(attempt.get("start_time"), attempt.get("end_time")) for attempt in attempts]
    lengths = [_difference(end, start) for start, end in ran if _is_known(start) and _is_known(end)]
    gpus = max(
        (sum(len(at.get("gpus") or ()) for at in attempt.get("detail") or ()) for attempt in attempts), default=0
    )
    entry = _philly_entry(job.get("jobid"), job.get("user"), job.get("vc"), job.get("submitted_time"))
    # One that still ran when the log was written has a last attempt without an end.
    if lengths and _is_known(ran[-1][1]):
        seconds = {length: _seconds(length) for length in lengths}
        wrong = [length for length, known in seconds.items() if known is None]
        entry["duration"] = (
            NoTime(wrong[0]) if wrong else _in_seconds(str(sum(seconds[length] or 0.0 for length in lengths)))
        )
    return {**entry, **_philly_request(gpus, 0)}


def _philly_table(path: Path) -> Iterator[tuple[str, Entry]]:
    for line, row in read_rows(path):
        found = {
            name: row[column]
            for name, columns in _PHILLY_COLUMNS.items()
            for column in columns
            if _is_known(row.get(column))
        }
        entry = _philly_entry(*(found.get(name) for name in ("name", "owner", "project", "arrival")))
        if "duration" in found:
            entry["duration"] = _in_seconds(found["duration"])
        elif "start" in found and "end" in found:
            entry["duration"] = _in_seconds(_difference(found["end"], found["start"]))
        gpus, machines = (_count(found.get(name, "0")) for name in ("gpus", "kernels"))
        if gpus is None or machines is None:
            raise BadInputError(f"{path}: line {line}: {found} has no number of GPUs; write such as 8")
        yield f"line {line}: ", {**entry, **_philly_request(gpus, machines)}


def _philly_entry(name: object, owner: object, project: object, arrival: object) -> dict[str, Any]:
    known = {"name": name, "owner": owner, "project": project}
    entry: dict[str, Any] = {key: str(value) for key, value in known.items() if value}
    return {**entry, "at": _in_seconds(str(arrival))} if _is_known(arrival) else entry


def _philly_request(gpus: int, machines: int) -> dict[str, Any]:
    """Return a gang of equal kernels: on as few agents as such a number of GPUs can be divided by."""
    kernels = machines if machines and not gpus % machines else 0
    kernels = kernels or next(
        (n for n in range(1, gpus + 1) if not gpus % n and gpus // n <= _MOST_GPUS_OF_AN_AGENT), 1
    )
    each = gpus // kernels
    request: dict[str, Any] = {
        "gpu": each,
        "cpu": _CPU_OF_A_GPU * max(1, each),
        "mem": f"{_GIB_OF_A_GPU * max(1, each)}G",
    }
    return {**request, "cluster_size": kernels, "cluster_mode": "multi-node"} if kernels > 1 else request


def _count(cell: str) -> int | None:
    """Return a trace's number of GPUs or machines, which some programs write as `8.0`. None for anything else."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return int(number) if 0 <= number <= _MOST_COUNT and number.is_integer() else None


def _is_known(value: object) -> bool:
    return value not in {None, "", "None", "NULL", "NaN", "nan"}


def _gpus(count: str, milli: str) -> dict[str, str]:
    """Return whole GPUs, or a share of one if the trace gives it less than a thousand thousandths."""
    return {"fgpu": f"{milli}m"} if count == "1" and milli.isdecimal() and int(milli) < 1000 else {"gpu": count}


def _seconds(cell: str) -> float | None:
    """Return a trace's time: seconds, or a date and time, as seconds since 1970. None for anything else."""
    try:
        seconds = float(cell)
    except ValueError:
        pass
    else:
        return seconds if math.isfinite(seconds) else None
    try:
        moment = datetime.fromisoformat(cell)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _in_seconds(cell: str) -> Seconds | NoTime:
    """Return a trace's time; what is no time as it is."""
    seconds = _seconds(cell)
    return NoTime(cell) if seconds is None or seconds < 0 else Seconds(seconds)


def _difference(end: object, begin: object) -> str:
    """Return the seconds between two times of a trace; the one that is no time as it is."""
    ended, began = _seconds(str(end)), _seconds(str(begin))
    if ended is None:
        return str(end)
    return str(begin) if began is None else str(max(0.0, ended - began))

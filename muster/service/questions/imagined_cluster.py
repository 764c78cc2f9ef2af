"""Agents that do not exist, from a file: what `muster simulate` tries a workload on.

They are made from reports as real agents are, so that what holds for these holds for them.
"""

import csv
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from muster.contract.report import GpuReport, Report, SwarmReport
from muster.core.agents.agent import UNIT, Agent, agent_from_report
from muster.core.agents.agent_attributes import AgentAttributes
from muster.core.spec.base import SpecModel
from muster.core.spec.errors import validated
from muster.core.spec.values import Bytes, invalid
from muster.core.values.errors import BadInputError, FieldError, SpecError
from muster.service.yaml_file import read_mapping

MOST_AGENTS = 100_000
_GPU_MEM_BYTES = 80 << 30
_COLUMNS = {
    "sn": "name",
    "gpu": "gpus",
    "model": "gpu_model",
    "group": "resource_group",
    # The machine list of philly-traces, which names neither cores nor memory.
    "machineId": "name",
    "number of GPUs": "gpus",
    "single GPU mem": "gpu_mem",
}
_CORES_OF_A_GPU = 8
_GIB_OF_A_GPU = 64


def _cores(value: object) -> int:
    """Return a number of cores: agents have whole ones."""
    text = str(value).strip()
    if not text.isdecimal() or not int(text):
        raise invalid(f"{text!r} is not a number of cores", "write a whole number such as 64")
    return int(text)


class AgentKind(SpecModel):
    """A number of equal agents. Other fields are attributes as in the inventory (`labels`, `rack`, …)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = Field(default=None, min_length=1, description="name of the one agent")
    count: int = Field(default=1, ge=1, le=MOST_AGENTS, description="how many agents")
    prefix: str = Field(default="agent-", min_length=1, description="their names are this and a number from 1")
    cpu: Annotated[int, BeforeValidator(_cores)] = Field(description="cores")
    mem: Bytes = Field(description="memory")
    gpus: int = Field(default=0, ge=0, le=64, description="GPUs")
    gpu_model: str = Field(default="GPU", description="model of the GPUs")
    gpu_mem: Bytes = Field(default=_GPU_MEM_BYTES, description="memory of each GPU")
    numa_nodes: int = Field(default=1, ge=1, le=16, description="NUMA nodes over which the GPUs are spread")
    overlay: bool = Field(default=True, description="whether an overlay network joins them")


_FIELDS = frozenset((*AgentKind.model_fields, *AgentAttributes.model_fields))


def imagined_agents(path: Path, *, is_list: bool = False) -> tuple[Agent, ...]:
    """Return the agents of a YAML file (`agents:`, a list of kinds) or of a CSV node list, as which `is_list` reads it.

    Raises BadInputError with one line for each thing that is wrong, with its place in the file.
    """
    entries = _rows(path) if is_list or path.suffix == ".csv" else _kinds(path)
    agents: dict[str, Agent] = {}
    problems: list[str] = []
    for where, entry in entries:
        try:
            made = _agents_of(entry, len(agents))
        except SpecError as error:
            problems += [f"{path}: {where}{item}" for item in error.errors]
            continue
        for agent in made:
            if agent.problem:
                problems.append(f"{path}: {where}{agent.problem.removeprefix('inventory: ')}")
            elif agent.id in agents:
                problems.append(f"{path}: {where}two agents are called {agent.id}; give them another prefix")
            agents[agent.id] = agent
    if problems:
        raise BadInputError("\n".join(dict.fromkeys(problems)))
    if not agents:
        raise BadInputError(
            f"{path} names no agent; write agents: and lines such as - {{count: 10, cpu: 64, mem: 512G}}"
        )
    return tuple(agents.values())


def read_list(path: Path, key: str) -> Sequence[Mapping[str, Any]]:
    """Return the list of mappings under the file's one key. Raises BadInputError."""
    content = read_mapping(path, str(path), f"write {key}: and a list below it")
    others = sorted(str(other) for other in content if other != key)
    if others:
        raise BadInputError(f"{path}: there is no key {others[0]!r}; write {key}: and a list")
    entries = content.get(key)
    if not isinstance(entries, list):
        raise BadInputError(f"{path}: {key} is not a list; write {key}: and lines that begin with a dash")
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise BadInputError(f"{path}: {key}[{number}] is not a mapping; write names with values")
    return entries


def read_rows(path: Path, needs: Iterable[str] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    """Return the lines of a CSV file with their numbers, without empty cells. Raises BadInputError.

    `needs` names columns that the file has to have.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            known = [name.strip() for name in reader.fieldnames or ()]
            for column in needs:
                if column not in known:
                    raise BadInputError(f"{path} has no column {column!r}; its columns are {', '.join(known)}")
            for row in reader:
                if None in row or None in row.values():
                    raise BadInputError(f"{path}:{reader.line_num}: it has more or fewer columns than the first line")
                yield reader.line_num, {name.strip(): cell.strip() for name, cell in row.items() if cell.strip()}
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except csv.Error as error:
        raise BadInputError(f"{path}:{reader.line_num}: {error}") from None


def _kinds(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, entry in enumerate(read_list(path, "agents")):
        yield f"agents[{number}].", {"resource_group" if name == "group" else str(name): v for name, v in entry.items()}


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for line, row in read_rows(path):
        entry: dict[str, Any] = {_COLUMNS.get(name, name): cell for name, cell in row.items()}
        if "cpu_milli" in entry:
            milli = str(entry.pop("cpu_milli"))
            entry["cpu"] = int(milli) // UNIT if milli.isdecimal() else milli
        if "memory_mib" in entry:
            entry["mem"] = f"{entry.pop('memory_mib')}M"
        if "machineId" in row:
            gpus = str(entry.get("gpus", ""))
            entry = {**_beside(int(gpus) if gpus.isdecimal() else 1), **entry}
        yield f"line {line}: ", {"units_per_gpu": 1, **entry}


def _beside(gpus: int) -> dict[str, Any]:
    return {"cpu": _CORES_OF_A_GPU * max(1, gpus), "mem": f"{_GIB_OF_A_GPU * max(1, gpus)}G"}


def _agents_of(entry: Mapping[str, Any], known: int) -> list[Agent]:
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        near = difflib.get_close_matches(unknown[0], _FIELDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(_FIELDS))}"
        raise SpecError([FieldError(unknown[0], "there is no such field", hint)])
    kind = validated(AgentKind, entry)
    names = [kind.name] if kind.name else [f"{kind.prefix}{number}" for number in range(1, kind.count + 1)]
    return [_agent(name, kind, is_first=known + place == 0) for place, name in enumerate(names)]


def _agent(name: str, kind: AgentKind, *, is_first: bool) -> Agent:
    # The file allows larger values than an agent could report, so they are not checked as an agent's are.
    gpus = tuple(
        GpuReport.model_construct(
            uuid=f"{name}/{index}",
            index=index,
            model=kind.gpu_model,
            mem_bytes=kind.gpu_mem,
            numa_node=index * kind.numa_nodes // kind.gpus if kind.numa_nodes > 1 else None,
        )
        for index in range(kind.gpus)
    )
    swarm = SwarmReport(state="active" if kind.overlay else "inactive", manager=kind.overlay and is_first)
    report = Report.model_construct(cpu_count=kind.cpu, mem_bytes=kind.mem, gpus=gpus, fgpu="imagined", swarm=swarm)
    return agent_from_report(name, report, kind.model_extra or {}, 0.0)

"""The host's NUMA nodes as its Linux kernel lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

SYSFS = Path("/sys")
_NODE = re.compile(r"node(\d+)")
_MEMORY = re.compile(r"MemTotal:\s+(\d+) kB")


def numa_nodes(sysfs: Path = SYSFS) -> list[dict[str, Any]]:
    """Return the nodes with their online CPUs and memory; none where the kernel knows of no nodes."""
    root = sysfs / "devices/system/node"
    if not root.is_dir():
        return []
    found = (_NODE.fullmatch(path.name) for path in root.iterdir())
    numbers = sorted(int(match.group(1)) for match in found if match)
    return [_node(number, root / f"node{number}") for number in numbers]


def node_of_pci_device(address: str, sysfs: Path = SYSFS) -> int | None:
    """Return the node that a device such as `0000:3b:00.0` hangs on; None where the firmware does not say."""
    try:
        node = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text("ascii"))
    except FileNotFoundError:
        return None
    return node if node >= 0 else None


def _node(number: int, directory: Path) -> dict[str, Any]:
    memory = _MEMORY.search((directory / "meminfo").read_text("ascii"))
    return {
        "node": number,
        "cpus": (directory / "cpulist").read_text("ascii").strip(),
        "mem_bytes": int(memory.group(1)) * 1024 if memory else 0,
    }

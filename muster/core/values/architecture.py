"""Architectures of processors: what images are for, and what agents are."""

from collections.abc import Mapping

LABEL = "muster/architecture"
"""Every agent has it. By it sessions are kept to agents of their images' architecture."""
# Docker's names, and the Linux kernel's, which agents report.
_KERNEL_NAMES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}


def architecture_of(name: str) -> str:
    """Return the Linux kernel's name of the architecture, the same one for each of its names."""
    return _KERNEL_NAMES.get(name, name)


def labels_of(reported: str) -> dict[str, str]:
    """Return the labels by which an agent of this architecture is chosen; none if it reports none."""
    return {LABEL: architecture_of(reported)} if reported else {}

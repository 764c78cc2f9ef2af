"""Whether the NVIDIA Container Toolkit of a host keeps tenants in their containers."""

from muster.contract.report import Report

LEAST_TOOLKIT = (1, 17, 8)
_LEAST = ".".join(map(str, LEAST_TOOLKIT))


def toolkit_problem(report: Report) -> str:
    """Return why no session may start on a host with GPUs; empty where nothing is known against its toolkit."""
    version = report.gpu_toolkit
    if not report.gpus or version is None or _numbers(version) >= LEAST_TOOLKIT:
        return ""
    return (
        f"the NVIDIA Container Toolkit is {version}, and before {_LEAST} an image can become root on its host"
        " (CVE-2025-23266); upgrade the package nvidia-container-toolkit"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers; what is none counts as the oldest."""
    words = version.split(".")
    return tuple(map(int, words)) if all(word.isascii() and word.isdigit() for word in words) else ()

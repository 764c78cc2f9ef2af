"""Whether an engine that remaps the ids of its containers (`userns-remap`) has all that sessions need."""

from muster.contract.report import Report

# The highest are those of folders' groups (muster/core/model/folders.py).
LEAST_IDS = 1 << 31


def remapped_ids_problem(report: Report) -> str:
    """Return why no session may start on a host; empty where its engine remaps no ids, or enough of them."""
    ids = report.docker.remapped_ids
    if ids is None:
        return ""
    if not ids.mounts:
        return (
            "the engine remaps ids (userns-remap), and this Linux kernel has no mounts that show them;"
            " run Linux 5.12 or newer, or take userns-remap out of /etc/docker/daemon.json"
        )
    if min(ids.uids, ids.gids) >= LEAST_IDS:
        return ""
    return (
        f"the engine remaps ids (userns-remap), and has {ids.uids} uids and {ids.gids} gids; give its user one range of"
        f" {LEAST_IDS} ids in /etc/subuid and /etc/subgid, and restart the engine"
    )

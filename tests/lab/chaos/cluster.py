"""The control node of a schedule: of little patience, its state, and its directories on the hosts, on small disks."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.chaos.faults import give_hosts_small_disks, mount_small_state, take_small_disks, unmount_state
from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab


@contextmanager
def control_node_for_chaos(lab: Lab, directory: Path) -> Iterator[LabControlNode]:
    """Give a control node with its daemon running; its sessions have ended by the time that it is left."""
    settings = {"observe_interval_s": 3, "lost_after_s": 10, "slow_after_s": 15}
    node = LabControlNode(directory, f"chaos-{secrets.token_hex(4)}", settings)
    node.notice_cuts_soon()
    mount_small_state(node)
    give_hosts_small_disks(lab, node)
    try:
        node.start_daemon()
        yield node
        node.end_everything()
        node.stop_daemon()
    finally:
        if node.daemon is not None:
            node.daemon.kill()
        take_small_disks(lab, node)
        unmount_state(node)

"""The control node of a schedule: of little patience, its state, and its directories on the hosts, on small disks."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.contract.postgresql_server import postgresql_server
from tests.lab.chaos.clock import Clock
from tests.lab.chaos.control_node import ChaosControlNode
from tests.lab.chaos.engine_disk import give_engine_a_small_disk, take_engine_disk
from tests.lab.chaos.faults import give_hosts_small_disks, mount_small_state, take_small_disks, unmount_state
from tests.lab.chaos.schedule import Database, Schedule
from tests.lab.lab import Lab


@contextmanager
def control_node_for_chaos(schedule: Schedule, lab: Lab, directory: Path) -> Iterator[ChaosControlNode]:
    """Give a control node with its daemon running; its sessions have ended by the time that it is left."""
    settings: dict[str, object] = {"observe_interval_s": 3, "lost_after_s": 10, "slow_after_s": 15}
    has_server = schedule.database is Database.POSTGRESQL
    with postgresql_server(keeps_commits=True) if has_server else nullcontext() as server:
        if server is not None:
            settings["database"] = server.url(server.new_database())
        node = ChaosControlNode(directory, f"chaos-{secrets.token_hex(4)}", settings, server=server)
        if schedule.sets_clock:
            node.clock = Clock(directory / "clock")
        node.notice_cuts_soon()
        mount_small_state(node)
        give_hosts_small_disks(lab, node)
        for host in schedule.hosts_with_small_disks:
            give_engine_a_small_disk(lab, host)
        try:
            node.start_daemon()
            yield node
            node.end_everything()
            node.stop_daemon()
        finally:
            if node.daemon is not None:
                node.daemon.kill()
            for host in schedule.hosts_with_small_disks:
                take_engine_disk(lab, host)
            take_small_disks(lab, node)
            unmount_state(node)

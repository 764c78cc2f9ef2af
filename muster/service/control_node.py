"""The control node put together from its settings."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.templates import Templates
from muster.core.schedule import schedule
from muster.keys import make_key_pair
from muster.service.logs import KeptLogs
from muster.service.queue_pass import PassDependencies, PassSummary, run_pass
from muster.settings import Settings, load_settings
from muster.store.lock import exclusive
from muster.store.store import Store


@contextmanager
def opened(settings: Settings) -> Iterator[PassDependencies]:
    """Everything that a pass needs, with the store open."""
    store = Store(settings.database_url)
    try:
        yield PassDependencies(
            store=store,
            gateway=AnsibleGateway(settings.inventory, settings.cluster),
            logs=KeptLogs(settings.log_dir),
            render=Templates(settings.templates).render,
            make_key_pair=make_key_pair,
            launch_policy=settings.launch_policy(),
        )
    finally:
        store.close()


def locked_pass(
    settings: Settings, shell: PassDependencies, *, observe: bool = True, wait: bool = False
) -> PassSummary:
    """One pass under the lock that keeps it the only one. Raises PassInProgressError unless it may `wait`."""
    with exclusive(settings.state_dir / "pass.lock", wait=wait):
        return run_pass(shell, observe=observe)


def pass_as_data(config: str, *, check: bool) -> dict[str, Any]:
    """One pass for `library/queue_pass.py`; with `check` only what would be placed, from the last observation."""
    settings = load_settings(Path(config))
    with opened(settings) as shell:
        if check:
            plan = schedule(shell.store.snapshot(time.time()), shell.policy)
            scheduled = [placement.session_id for placement in plan.placements]
            summary = PassSummary(scheduled=scheduled, waiting=len(plan.waits))
        else:
            summary = locked_pass(settings, shell, wait=True)
    return {**asdict(summary), "changed": summary.changed}

"""The control node put together from its settings."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from muster.ansible_gateway.gateway import AnsibleGateway, inventory_of
from muster.ansible_gateway.templates import Templates
from muster.core.agents.launch_record import SuspectRules
from muster.core.lifecycle.launch_usage import IdleRulesOf
from muster.core.scheduling.closures import could_hold
from muster.core.scheduling.schedule import schedule
from muster.core.turn.ledger import TurnRules
from muster.core.values.errors import PassInProgressError
from muster.keys import make_key_pair
from muster.service.images.collection import ImageCollection
from muster.service.images.rights import ImageRights
from muster.service.images.source import ImageSource
from muster.service.notify.delivery_worker import deliver_once
from muster.service.queue.loop import QueueLoop
from muster.service.queue.observers import Observers, open_observer
from muster.service.queue.observing_gateway import ObservingGateway
from muster.service.queue.visits import Gateway
from muster.service.queue.worker import Work, WorkerDependencies
from muster.service.scheduler.site_policy import SiteScheduling
from muster.service.secrets.secrets import Secrets
from muster.service.wake import AGENTS, wake
from muster.settings import Settings, load_settings
from muster.store.database.lock import queue_lock
from muster.store.store import Store

_POLL_S = 0.1
_LEAST_GAP_S = 60.0


@contextmanager
def opened(settings: Settings) -> Iterator[WorkerDependencies]:
    """Open the store, and yield everything that working the queue needs."""
    gateway = AnsibleGateway(inventory_of(settings), settings.cluster, settings.folders_root)
    with closing(gateway), _opened(settings, gateway) as shell:
        yield shell


@contextmanager
def opened_for_daemon(
    settings: Settings, plays_ahead: Mapping[str, int]
) -> Iterator[tuple[WorkerDependencies, ObservingGateway]]:
    """Open the same for a daemon, with its gateway, which is to be told of reports and of kernels that die.

    Between visits, `plays_ahead` are kept, and programs stay open on the agents that report.
    """
    observers = Observers(partial(open_observer, cluster=settings.cluster, folders_root=settings.folders_root))
    plays = AnsibleGateway(inventory_of(settings), settings.cluster, settings.folders_root, plays_ahead)
    gateway = ObservingGateway(plays, settings.inventory, observers)
    with closing(plays), closing(gateway), _opened(settings, gateway) as shell:
        yield replace(shell, hurry=gateway.hurry), gateway


@contextmanager
def _opened(settings: Settings, gateway: Gateway) -> Iterator[WorkerDependencies]:
    store = Store(settings.database_url)
    try:
        yield WorkerDependencies(
            store=store,
            gateway=gateway,
            pull_image=ImageSource(store, settings),
            collect_images=ImageCollection(store, settings, _start_thread),
            render=Templates(settings.templates).render,
            make_key_pair=make_key_pair,
            launch_policy=settings.launch_policy(),
            start=_start_thread,
            with_policy=SiteScheduling(settings, store).complete,
            secrets=Secrets(store.secrets, settings.seal_key),
            refused_images=ImageRights(store, settings.catalog).refusals,
            rules=TurnRules(
                settings.lost_after_s,
                settings.slow_after_s,
                could_hold,
                _idle_rules(settings),
                SuspectRules(settings.suspect_after, settings.suspect_for_s),
                cancels_impossible=settings.cancel_impossible,
            ),
        )
    finally:
        store.close()


def work_once(settings: Settings, shell: WorkerDependencies, *, wait: bool = False) -> Work:
    """Make one pass; where a daemon or another pass works the queue, request one of it.

    Raises PassInProgressError then, unless it may `wait` until that pass is over.
    """
    try:
        return _worked_here(settings, shell)
    except PassInProgressError:
        since = shell.store.last_event()
        number = shell.store.queue.request_pass()
        wake(settings, shell.store, AGENTS)
        if not wait:
            raise
    while shell.store.queue.finished_pass() < number:
        time.sleep(_POLL_S)
        try:
            return _worked_here(settings, shell)
        except PassInProgressError:
            continue
    work = Work(waiting=len(shell.store.snapshot(time.time()).pending))
    for session_id, state in shell.store.events_after(since):
        work.note(session_id, state)
    return work


def pass_as_data(config: str, *, check: bool) -> dict[str, Any]:
    """Make one pass for `library/queue_pass.py`; with `check` only say what it would place, as last observed."""
    settings = load_settings(Path(config))
    with opened(settings) as shell:
        if check:
            plan = schedule(shell.with_policy(shell.store.snapshot(time.time())))
            scheduled = [placement.session_id for placement in plan.placements]
            work = Work(scheduled=scheduled, waiting=len(plan.waits))
        else:
            work = work_once(settings, shell, wait=True)
    return {**asdict(work), "changed": work.changed}


def _worked_here(settings: Settings, shell: WorkerDependencies) -> Work:
    with queue_lock(settings.database_url, settings.state_dir, wait=False) as lock:
        work = QueueLoop(settings, shell, lock).run_until_idle()
    deliver_once(settings, shell.store)
    return work


def _idle_rules(settings: Settings) -> IdleRulesOf:
    """Return the rules by resource group. It counts what three observations in a row could have shown."""
    gap_s = max(_LEAST_GAP_S, 3 * settings.observe_interval_s)
    return lambda resource_group: settings.idle.rules(resource_group, gap_s)


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()

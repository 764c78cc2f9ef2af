"""Samples of what kernels use over their lives, taken as their agents' reports come in."""

from collections.abc import Iterable

from muster.core.model.snapshot import Snapshot
from muster.core.usage.history import is_due, step_s, usage_step
from muster.core.usage.kernel import KernelUsage
from muster.store.store import Store

_REMOVE_EVERY_S = 900


class UsageSampling:
    """The sampling of one queue worker. What it sampled last is remembered for as long as sessions have places."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By kernel and launch: what was sampled last, and the step that its rows have.
        self._last: dict[tuple[str, int], tuple[KernelUsage, int]] = {}
        self._removed_at = 0.0

    def observe(self, snapshot: Snapshot, usage: Iterable[KernelUsage]) -> None:
        """Store samples of usage that has just been reported."""
        kernels = {session.id: len(session.kernels) for session in snapshot.holding}
        taken = []
        for use in usage:
            key = (use.kernel_id, use.generation)
            before, length = self._last.get(key, (None, 0))
            step = step_s(use.seen_at - use.began_at, kernels.get(use.session_id, 1))
            if not is_due(before, use, step):
                continue
            if step != length and before is not None:
                self._store.usage_steps.thin(*key, step)
            taken.append(usage_step(before, use, step))
            self._last[key] = (use, step)
        if taken:
            self._store.usage_steps.add(taken)
        if abs(snapshot.now - self._removed_at) >= _REMOVE_EVERY_S:
            self._removed_at = snapshot.now
            self._store.usage_steps.remove_old(snapshot.now)
            self._last = {key: last for key, last in self._last.items() if last[0].session_id in kernels}

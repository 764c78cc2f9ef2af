"""On the control node: a host's archive of an image, fetched as far as an image may be large."""

import resource
from typing import Any

from ansible.plugins.action.fetch import ActionModule as FetchAction

from muster.core.values.units import parse_bytes


class ActionModule(FetchAction):  # type: ignore[misc]
    """An action like `fetch`, which breaks off after `max_size` bytes: a host may send without end."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        most = parse_bytes(str(self._task.args.pop("max_size")))
        # Each task has a process of its own, whose programs inherit this.
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        result: dict[str, Any] = super().run(tmp, task_vars)
        return result

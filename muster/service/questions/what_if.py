"""Questions about the queue that change nothing: the scheduler's own decision, replayed on what the store holds."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster.core.agents.agent import Agent
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.session import FINAL, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.limits import pending_refusal
from muster.core.simulation.simulation import Cluster, Job, Progress, Simulated, simulate
from muster.core.values.errors import (
    BadInputError,
    NameTakenError,
    NotPossibleInStateError,
    SettingsError,
    SpecError,
)
from muster.core.whatif.counterfactual import StartForecast, what_would_help, would_start
from muster.core.whatif.drain_plan import DrainPlan, drain_plan
from muster.core.whatif.hypothesis import SpecChange, Suggestion
from muster.service.agents.agents import named_agents
from muster.service.questions.imagined_cluster import imagined_agents
from muster.service.questions.traces import Format
from muster.service.questions.workload import Workload, history, workload
from muster.service.scheduler.plugins import load_order, load_placement, scheduling_policy
from muster.service.scheduler.site_policy import SiteScheduling
from muster.service.specs.idle_bounds import with_site_bounds
from muster.settings import Settings
from muster.store.store import Store

LIVE = "live"
HISTORY = "history"


class WhatIf:
    """The questions about the site's own queue."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._site = SiteScheduling(settings, store)

    def snapshot(self) -> Snapshot:
        return self._site.complete(self._store.snapshot(time.time()))

    def would_start(self, new: Sequence[Session]) -> tuple[StartForecast, ...]:
        """Return what would become of sessions that are not queued.

        Raises NameTakenError and BadInputError as `SessionCommands.submit` would.
        """
        snapshot = self.snapshot()
        known = {name for session in snapshot.sessions for name in (session.name, session.array_name)}
        for name in (name for session in new for name in (session.name, session.array_name) if name is not None):
            if name in known:
                raise NameTakenError(
                    f"name: a session that has not ended is already called {name}; choose another name"
                )
        refusal = pending_refusal(snapshot.policy.limits, snapshot.pending, new)
        if refusal is not None:
            raise BadInputError(refusal)
        needed = self._store.get(sorted({key for session in new for key in session.spec.dependencies}))
        ended = {key: session for key, session in needed.items() if session.state in FINAL}
        found = would_start(replace(snapshot, ended={**snapshot.ended, **ended}), new)
        return tuple(replace(one, suggestions=self._allowed(one.session, one.suggestions)) for one in found)

    def what_would_help(self, session: Session) -> tuple[Suggestion, ...]:
        """Raises NotPossibleInStateError for a session that does not wait."""
        if session.state is not SessionState.PENDING:
            raise NotPossibleInStateError(f"session {session.name} is {session.state}, no longer pending")
        return self._allowed(session, what_would_help(self.snapshot(), session))

    def _allowed(self, session: Session, suggestions: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
        """Return those of the suggestions that the site lets the session's owner submit."""
        return tuple(one for one in suggestions if self._may_submit(session, one))

    def _may_submit(self, session: Session, suggestion: Suggestion) -> bool:
        changes = [change.fields for change in suggestion.changes if isinstance(change, SpecChange)]
        fields = {name: value for changed in changes for name, value in changed.items()}
        if fields.get("priority", 0) > self._settings.most_priority_of(session.owner):
            return False
        if "resource_group" not in fields:
            return True
        try:
            with_site_bounds(session.spec.model_copy(update=fields), self._settings)
        except SpecError:
            # Sessions of that group may not live as long.
            return False
        return True

    def planned_drain(self, names: Collection[str]) -> DrainPlan:
        """Return what draining these agents would do. Raises NotFoundError."""
        snapshot = self.snapshot()
        return drain_plan(snapshot, [use.agent.id for use in named_agents(snapshot, names)])

    def agents(self) -> tuple[Agent, ...]:
        """Return the agents of the inventory as if each answered and none were drained or suspect."""
        return tuple(agent.in_service() for agent in self.snapshot().agents if not agent.has_left)

    def policy(self) -> SchedulingPolicy:
        """Return the policy that holds now. Raises SettingsError when a scheduler plugin cannot be used."""
        return self._site.policy()

    def history(self, days: float) -> list[Job]:
        """Return the sessions of the last days as jobs. Raises BadInputError when none of them ran."""
        now = time.time()
        since = now - days * 86400
        jobs = history((s for s in self._store.search(ended=True) if s.submitted_at >= since), now)
        if not jobs:
            raise BadInputError(f"--workload: no session of the last {days:g} days has run; write a larger --days")
        return jobs


@dataclass(frozen=True, slots=True)
class Trial:
    """A cluster and a workload to be tried, in one way or in several."""

    agents: tuple[Agent, ...]
    jobs: Sequence[Job]
    launch_s: float
    interval_s: float
    until: float | None

    def run(self, policy: SchedulingPolicy, half_life_s: float, progressed: Callable[[Progress], None]) -> Simulated:
        cluster = Cluster(self.agents, policy, self.launch_s, self.interval_s, half_life_s)
        return simulate(self.jobs, cluster, self.until, progressed)


def agents_of(cluster: str, form: Format, what_if: Callable[[], WhatIf]) -> tuple[Agent, ...]:
    """Return the agents of a file, or the site's own for `live`."""
    if cluster == LIVE:
        return what_if().agents()
    path = Path(cluster)
    return imagined_agents(path, is_list=bool(form.trace) and path.suffix not in {".yml", ".yaml"})


def jobs_of(source: str, form: Format, days: float, what_if: Callable[[], WhatIf]) -> Workload:
    """Return the jobs of a file, or the site's own for `history`."""
    return Workload(what_if().history(days)) if source == HISTORY else workload(Path(source), form)


def site_policy(cluster: str, source: str, settings: Settings, what_if: Callable[[], WhatIf]) -> SchedulingPolicy:
    """Return the settings' policy, and over it what administrators set where a question is about the site itself.

    Raises SettingsError.
    """
    return what_if().policy() if cluster == LIVE or source == HISTORY else scheduling_policy(settings)


def policies(
    policy: SchedulingPolicy,
    site: Path,
    order: str | None,
    placement: str | None,
    compared: Iterable[str],
    changes: Mapping[str, bool],
) -> dict[str, SchedulingPolicy]:
    """Return by name the policies to schedule a workload by: this one, with what is given instead.

    `compared` names orders or placement policies, each of which makes one; `site` has the site's own. Raises
    SettingsError.
    """
    base = _everywhere(policy, changes)
    if order is not None:
        base = _everywhere(base, {"order": load_order(order, site)})
    if placement is not None:
        base = _everywhere(base, {"placement": load_placement(placement, site)})
    names = list(dict.fromkeys(compared))
    if not names:
        return {", ".join(name for name in (order, placement) if name) or "as set": base}
    return {name: _everywhere(base, _named(name, site)) for name in names}


def _named(name: str, site: Path) -> dict[str, Any]:
    """Return the order or the placement policy of that name."""
    try:
        return {"order": load_order(name, site)}
    except SettingsError:
        return {"placement": load_placement(name, site)}


def _everywhere(policy: SchedulingPolicy, changes: Mapping[str, Any]) -> SchedulingPolicy:
    """Return the policy with these fields in every resource group."""
    groups = {name: replace(group, **changes) for name, group in policy.groups.items()}
    return replace(policy, default=replace(policy.default, **changes), groups=groups)

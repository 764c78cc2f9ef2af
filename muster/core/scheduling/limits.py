"""Limits of sessions, kernels and slots for users, projects and resource groups, and what they refuse."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from muster.core.model.policy import EACH, Limit, Limits
from muster.core.model.session import Kernel, Session
from muster.core.model.wait import LimitHit, LimitKind, Wait, WaitCode
from muster.core.values.slots import SLOT_NAMES, spell_slot

COUNTED = ("sessions", "kernels", *SLOT_NAMES)


@dataclass(slots=True)
class _Scope:
    """The amounts that count against one limit. `bounds` holds places in COUNTED with their limits."""

    kind: LimitKind
    who: str
    bounds: tuple[tuple[int, int], ...]
    used: list[int] = field(default_factory=lambda: [0] * len(COUNTED))
    # By place in COUNTED and amount: sessions of one shape that the limit refuses share the refusal.
    refusals: dict[tuple[int, int], Wait] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.who}"


class _Counts:
    """The scopes of each owner, project and resource group that the limits are about."""

    def __init__(self, limits: Limits, bounds: Callable[[Limit], Mapping[str, int]]) -> None:
        self._limits = (
            (LimitKind.USER, limits.users),
            (LimitKind.PROJECT, limits.projects),
            (LimitKind.RESOURCE_GROUP, limits.resource_groups),
        )
        self._bounds = bounds
        self._scopes: dict[tuple[LimitKind, str], _Scope | None] = {}
        self._of: dict[tuple[str, str, str], tuple[_Scope, ...]] = {}

    def scopes(self, session: Session) -> tuple[_Scope, ...]:
        """Return the scopes that the session counts against."""
        spec = session.spec
        key = session.owner, spec.project, spec.resource_group
        found = self._of.get(key)
        if found is None:
            pairs = zip(self._limits, key, strict=True)
            found = tuple(scope for (kind, limits), name in pairs if (scope := self._scope(kind, limits, name)))
            self._of[key] = found
        return found

    def add(self, session: Session) -> None:
        if self.scopes(session):
            self.add_amounts(session, _sum(session.kernels))

    def add_amounts(self, session: Session, amounts: Sequence[int]) -> None:
        for scope in self.scopes(session):
            for place, _ in scope.bounds:
                scope.used[place] += amounts[place]
            scope.refusals.clear()

    def _scope(self, kind: LimitKind, limits: Mapping[str, Limit], name: str) -> _Scope | None:
        if (kind, name) not in self._scopes:
            limit = limits.get(name, limits.get(EACH))
            bounds = self._bounds(limit) if limit else {}
            places = tuple((place, bounds[counted]) for place, counted in enumerate(COUNTED) if counted in bounds)
            self._scopes[kind, name] = _Scope(kind, name, places) if places else None
        return self._scopes[kind, name]


class RunningLimits:
    """A count of what is placed, against the limits of what may run at a time."""

    def __init__(self, limits: Limits, placed: Iterable[Session]) -> None:
        self._counts = _Counts(limits, lambda limit: limit.running)
        for session in placed:
            self._counts.add(session)

    def add(self, session: Session) -> None:
        """Count another session that was placed."""
        self._counts.add(session)

    def more(self, session: Session, kernels: Sequence[Kernel]) -> int:
        """Return how many of these kernels, which are alike, the session may have beside those that it counts for."""
        most = len(kernels)
        _, *amounts = _sum(kernels[:1])
        for scope in self._counts.scopes(session):
            for place, bound in scope.bounds:
                if place and amounts[place - 1]:
                    most = min(most, max(0, bound - scope.used[place]) // amounts[place - 1])
        return most

    def add_kernels(self, session: Session, kernels: Sequence[Kernel]) -> None:
        """Count further kernels of a session that is counted already."""
        _, *amounts = _sum(kernels)
        self._counts.add_amounts(session, (0, *amounts))

    def refusal(self, session: Session) -> Wait | None:
        scopes = self._counts.scopes(session)
        if not scopes:
            return None
        amounts = _sum(session.kernels)
        first: tuple[_Scope, int] | None = None
        for scope in scopes:
            for place, bound in scope.bounds:
                if amounts[place] > bound:
                    return _refusal(scope, place, amounts[place])
                if first is None and scope.used[place] + amounts[place] > bound and amounts[place]:
                    first = scope, place
        return _refusal(*first, amounts[first[1]]) if first else None


def pending_refusal(
    limits: Limits, pending: Iterable[Session], new: Sequence[Session], replaced: Iterable[Session] = ()
) -> str | None:
    """Return why these new sessions may not be queued beside those that are pending; None when they may.

    `replaced` are those in whose place they come: what asks for no more than these is never refused.
    """
    counts = _Counts(limits, lambda limit: limit.pending)
    if not any(counts.scopes(session) for session in new):
        return None
    for session in pending:
        counts.add(session)
    before = {scope.name: list(scope.used) for session in new for scope in counts.scopes(session)}
    for session in new:
        counts.add(session)
    given_up = _Counts(limits, lambda limit: limit.pending)
    for session in replaced:
        given_up.add(session)
    pairs = (zip(counts.scopes(session), given_up.scopes(session), strict=True) for session in new)
    for scope, left in {scope.name: (scope, left) for pair in pairs for scope, left in pair}.values():
        for place, bound in scope.bounds:
            request = scope.used[place] - before[scope.name][place]
            if request > left.used[place] and scope.used[place] > bound:
                name, others = COUNTED[place], before[scope.name][place]
                return (
                    f"{scope.name} may have {spell_counted(name, bound)} waiting, has {spell_counted(name, others)},"
                    f" and this asks for {spell_counted(name, request)} more;"
                    " wait until some have started, or end some"
                )
    return None


def _refusal(scope: _Scope, place: int, request: int) -> Wait:
    key = place, request
    known = scope.refusals.get(key)
    if known is None:
        known = scope.refusals[key] = _wait(scope, place, request)
    return known


def _wait(scope: _Scope, place: int, request: int) -> Wait:
    name, value = COUNTED[place], dict(scope.bounds)[place]
    hit = LimitHit(scope.kind, scope.who, name, value, scope.used[place], request)
    if request > value:
        most = spell_counted(name, value)
        message = f"it asks for {spell_counted(name, request)}, more than {scope.name} may ever run: {most}"
        return Wait(WaitCode.NEVER_RUNS, message, limit=hit)
    message = (
        f"{scope.name} may run {spell_counted(name, value)} at a time, uses {spell_counted(name, hit.used)},"
        f" and this asks for {spell_counted(name, request)} more"
    )
    return Wait(WaitCode.LIMIT, message, limit=hit)


def _sum(kernels: Sequence[Kernel]) -> tuple[int, ...]:
    """Return the amounts of a session with these kernels, in the order of COUNTED."""
    cpu = mem = fgpu = gpu = 0
    for kernel in kernels:
        slots = kernel.slots
        cpu += slots.cpu
        mem += slots.mem
        fgpu += slots.fgpu
        gpu += slots.gpu
    return 1, len(kernels), cpu, mem, fgpu, gpu


def spell_counted(counted: str, amount: int) -> str:
    """Return an amount of what a limit counts, with its unit: `3 sessions`, `1 container`, `8 GPU`."""
    if counted in SLOT_NAMES:
        return spell_slot(counted, amount)
    noun = {"sessions": "session", "kernels": "container"}[counted]
    return f"{amount} {noun if amount == 1 else noun + 's'}"

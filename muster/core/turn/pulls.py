"""The image pulls under way, and what came of earlier ones.

Both are forgotten when the queue's worker ends, since a pull may be repeated.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from muster.core.agents.agent import Agent
from muster.core.images.names import familiar
from muster.core.model.session import PullProgress, Session
from muster.core.turn.facts import PullOver
from muster.core.values.errors import ImageError

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ImagePull:
    """An image to bring to an agent that lacks it."""

    agent: Agent
    image: str


@dataclass(frozen=True, slots=True)
class Pulls:
    """The pulls, all by agent id and image; `done` holds pulls that no report has shown yet."""

    under_way: Mapping[_Key, PullProgress] = field(default_factory=dict)
    done: frozenset[_Key] = frozenset()
    failures: Mapping[_Key, ImageError] = field(default_factory=dict)

    def missing(self, session: Session, agents: Mapping[str, Agent]) -> dict[str, set[str]]:
        """Return, by image, the session's agents that lack it."""
        missing: dict[str, set[str]] = {}
        for kernel in session.kernels:
            agent = agents.get(kernel.allocation.agent_id) if kernel.allocation else None
            if agent is None or (agent.id, kernel.image) in self.done:
                continue
            if not _holds(agent, kernel.image):
                missing.setdefault(kernel.image, set()).add(agent.id)
        return missing

    def failure(self, missing: Mapping[str, Iterable[str]]) -> ImageError | None:
        """Return why one of these pulls failed; a permanent failure before others."""
        failures = [self.failures[key] for key in _keys(missing) if key in self.failures]
        return next((f for f in failures if f.permanent), failures[0] if failures else None)

    def failed_on(self, missing: Mapping[str, Iterable[str]]) -> frozenset[str]:
        """Return the agents on which one of these pulls failed."""
        return frozenset(agent_id for agent_id, image in _keys(missing) if (agent_id, image) in self.failures)

    def progress(self, missing: Mapping[str, Iterable[str]]) -> tuple[PullProgress, ...]:
        """Return, of these, how far each pull that is under way has come."""
        keys = sorted(_keys(missing), key=_by_image)
        return tuple(self.under_way[key] for key in keys if key in self.under_way)

    def begun(self, pulls: Iterable[ImagePull]) -> "Pulls":
        """Return these with the new ones; how an earlier pull of the same image ended is forgotten."""
        new = {(pull.agent.id, pull.image): PullProgress(pull.agent.id, pull.image, 0, 0) for pull in pulls}
        if not new:
            return self
        failures = {key: error for key, error in self.failures.items() if key not in new}
        return replace(self, under_way={**self.under_way, **new}, failures=failures)

    def after(self, fact: PullProgress | PullOver) -> "Pulls":
        """Return these after the fact; one of a pull that is not under way says nothing new."""
        key = (fact.agent_id, fact.image)
        if key not in self.under_way:
            return self
        if isinstance(fact, PullProgress):
            return replace(self, under_way={**self.under_way, key: fact})
        rest = {other: progress for other, progress in self.under_way.items() if other != key}
        if fact.error is not None:
            return replace(self, under_way=rest, failures={**self.failures, key: fact.error})
        return replace(self, under_way=rest, done=self.done | {key})

    def shown_by(self, agents: Iterable[Agent]) -> "Pulls":
        """Return these without what reports show: from then on, reports say whether the agent has an image."""
        by_id = {agent.id: agent for agent in agents}
        shown = {key for key in self.done if key[0] in by_id and _holds(by_id[key[0]], key[1])}
        return replace(self, done=self.done - shown) if shown else self

    def without_unshown(self, agent_ids: Collection[str]) -> "Pulls":
        """Return these without what no report of the agents has shown: launches failed there, so it may be gone."""
        done = frozenset(key for key in self.done if key[0] not in agent_ids)
        return replace(self, done=done) if done != self.done else self


def _holds(agent: Agent, image: str) -> bool:
    return bool(agent.images & {image, familiar(image)})


def _keys(missing: Mapping[str, Iterable[str]]) -> Iterator[_Key]:
    return ((agent_id, image) for image, agent_ids in missing.items() for agent_id in sorted(agent_ids))


def _by_image(key: _Key) -> tuple[str, str]:
    agent_id, image = key
    return image, agent_id

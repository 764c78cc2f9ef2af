"""What would become of new sessions, as a user may see it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.core.model.heartbeat import Unworked
from muster.core.model.session import Session
from muster.core.whatif.counterfactual import StartForecast
from muster.core.whatif.left_out import left_out
from muster.core.whatif.redaction import redacted
from muster.service.questions.what_if import WhatIf
from muster.service.questions.why import visible_suggestions
from muster.service.queue.heartbeat import unworked_queue
from muster.service.sessions.visibility import Sees
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class DryRun:
    """A forecast for sessions, with the GPUs' indexes by uuid and the sessions' names by id for printing.

    `left_out` are lines, by session id, on the agents that its wait counts as left out. `unworked` is set if nobody
    works the queue: then nothing starts, whatever the answers say.
    """

    answers: Sequence[StartForecast]
    gpu_indexes: Mapping[str, int]
    names: Mapping[str, str]
    left_out: Mapping[str, Sequence[str]]
    unworked: Unworked | None = None


def visible_dry_run(store: Store, settings: Settings, new: Sequence[Session], sees: Sees) -> DryRun:
    """Return what would become of sessions that are not queued. Raises as `WhatIf.would_start`."""
    what_if = WhatIf(store, settings)
    snapshot = what_if.snapshot()
    indexes = {gpu.uuid: gpu.index for agent in snapshot.agents for gpu in agent.gpus}
    names = {session.id: session.name for session in (*snapshot.sessions, *new) if sees(session)}
    unworked = unworked_queue(store, settings, for_new=True)
    answers = _visible_answers(store, what_if.would_start(new), sees)
    left = {one.session.id: left_out(one.session, one.wait, snapshot) for one in answers if one.wait}
    return DryRun(answers, indexes, names, left, unworked)


def _visible_answers(store: Store, answers: Sequence[StartForecast], sees: Sees) -> tuple[StartForecast, ...]:
    waited_for = {key for answer in answers if answer.wait for key in answer.wait.waits_for}
    others = store.get(sorted(waited_for))
    hidden = {key for key, other in others.items() if not sees(other)}
    return tuple(_visible(store, answer, hidden, sees) for answer in answers)


def _visible(store: Store, answer: StartForecast, hidden: Collection[str], sees: Sees) -> StartForecast:
    if answer.wait is None:
        return answer
    suggestions = visible_suggestions(store, answer.suggestions, sees) if answer.suggestions else ()
    return replace(answer, wait=redacted(answer.wait, hidden), suggestions=suggestions)

"""One image on many agents: which hold it, and copying it to those that do not."""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from muster.core.agents.agent import Agent, AgentState
from muster.core.images.identity import ImageIds
from muster.core.images.names import familiar
from muster.core.values.errors import BadInputError, MusterError, NotFoundError
from muster.engine.images import CopiedImage, ExpectedImage, copy, image_id
from muster.service.images.catalog import holders
from muster.store.store import Store

_PARALLEL = 4


@dataclass(frozen=True, slots=True)
class ImageSync:
    """An image, the agent that gives it, and those that shall have the same.

    `image_id` is its id on the source; `ids` tell which others mean the same image.
    """

    reference: str
    source: Agent
    image_id: str
    targets: tuple[Agent, ...]
    ids: ImageIds


@dataclass(frozen=True, slots=True)
class Synced:
    """The result for one target; `error` is one line."""

    agent_id: str
    changed: bool
    error: str | None = None
    copied: CopiedImage | None = None


# Agent id, bytes done, bytes in total; called from several threads.
SyncProgressed = Callable[[str, int, int], None]


def image_sync(
    agents: Sequence[Agent],
    reference: str,
    ids: ImageIds,
    *,
    source_id: str | None = None,
    target_ids: Collection[str] = (),
    group: str | None = None,
) -> ImageSync:
    """Plan copies from `source_id` or any agent that has it, to `target_ids`, or all that answer (of one group).

    Reads the source's engine. Raises BadInputError if agents hold different images under that reference and none was
    chosen. Raises NotFoundError for a missing agent, group or image, and AgentUnreachableError.
    """
    by_id = {agent.id: agent for agent in agents}
    unknown = sorted({*target_ids, *([source_id] if source_id else [])} - by_id.keys())
    if unknown:
        raise NotFoundError(f"there is no agent {', '.join(unknown)}; see `muster agents`")
    if group is not None and all(agent.resource_group != group for agent in agents):
        raise NotFoundError(f"--group: no agent is in resource group {group!r}; see `muster agents`")
    name = familiar(reference)
    source = by_id[source_id or _any_holder(agents, name, ids)]
    found = image_id(source, name)
    if found is None:
        raise NotFoundError(f"image {name} is not on agent {source.id}; see `muster agent show {source.id}`")
    targets = [by_id[target] for target in dict.fromkeys(target_ids)] or [
        agent for agent in agents if agent.state is AgentState.ALIVE and group in {None, agent.resource_group}
    ]
    return ImageSync(name, source, found, tuple(agent for agent in targets if agent.id != source.id), ids)


def _any_holder(agents: Sequence[Agent], name: str, ids: ImageIds) -> str:
    found = holders([agent for agent in agents if agent.state is AgentState.ALIVE], name)
    if not found:
        raise NotFoundError(
            f"no agent that answers was seen with image {name}; see `muster images`, or name one with --from"
        )
    if len(ids.distinct(found.values())) > 1:
        listed = ", ".join(f"{agent_id} {identity[7:19]}" for agent_id, identity in found.items())
        raise BadInputError(f"--from: agents hold different images as {name} ({listed}); name the one to copy from")
    return next(iter(found))


def synced(
    sync: ImageSync, most_bytes: int, progressed: SyncProgressed, finished: Callable[[Synced], None]
) -> list[Synced]:
    """Copy the image to the targets that lack it, some at a time; one that fails does not stop the others.

    No archive may have more than `most_bytes`.
    """
    given_up = threading.Event()
    outcomes = []
    with ThreadPoolExecutor(_PARALLEL) as pool:
        copies = [pool.submit(_synced, sync, target, most_bytes, progressed, given_up) for target in sync.targets]
        try:
            for done in as_completed(copies):
                outcomes.append(done.result())
                finished(outcomes[-1])
        except BaseException:  # Ctrl-C: copies that have begun are ended, the others do not begin
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(outcomes, key=lambda outcome: outcome.agent_id)


def note_ids(store: Store, copied: Iterable[CopiedImage]) -> None:
    """Record the ids of images that have one on their source and another on their target."""
    for image in copied:
        if image.config_id is not None and len(image.ids) > 1:
            store.image_ids.add(image.config_id, image.ids)


class _GivenUpError(MusterError):
    """It was interrupted."""


def _synced(
    sync: ImageSync, target: Agent, most_bytes: int, progressed: SyncProgressed, given_up: threading.Event
) -> Synced:
    def going_on(done: int, total: int) -> None:
        if given_up.is_set():
            raise _GivenUpError
        progressed(target.id, done, total)

    try:
        if sync.ids.are_one(image_id(target, sync.reference), sync.image_id):
            return Synced(target.id, changed=False)
        copied = copy(sync.source, target, sync.reference, ExpectedImage(sync.image_id, most_bytes), going_on)
    except MusterError as error:
        return Synced(target.id, changed=False, error=str(error))
    return Synced(target.id, changed=True, copied=copied)

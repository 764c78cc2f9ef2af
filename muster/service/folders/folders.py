"""Folders with an owner: made, shared, measured, removed."""

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from muster.ansible_gateway.gateway import AnsibleGateway, inventory_of
from muster.core.agents.agent import AgentState
from muster.core.launch.folders import folder_to_make
from muster.core.model.folders import (
    Folder,
    FolderMounter,
    FolderShare,
    check_grantee,
    check_name,
    check_owner,
    check_quota,
)
from muster.core.turn.answer import AgentAnswer
from muster.core.values.errors import AnsibleFailedError, NotPossibleInStateError
from muster.service.at_once import AtOnce
from muster.service.folders.measurements import Measurements, Visited
from muster.service.identity.owner_uids import check_uid, with_uids
from muster.settings import Settings
from muster.store.store import Store

# Each is a run of Ansible over all agents that answer, and waits for the slowest of them.
_CHANGES = AtOnce(32, 8, ("folders", "are being changed"))


class FolderService:
    """The commands of `muster folder`: in the store at once, and on the agents that answer."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        measurements: Measurements | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._measurements = measurements or Measurements()
        self._store = store
        self._settings = settings
        self._policy = settings.launch_policy()
        self._clock = clock

    def create(self, name: str, owner: str, quota_bytes: int | None) -> tuple[Folder, Visited]:
        """Create a folder; agents that do not answer make it when a session of theirs mounts it.

        Raises BadInputError, NameTakenError, and NotPossibleInStateError where too many are being changed.
        """
        check_name(name)
        check_owner(owner)
        check_uid(self._policy, self._store, owner)
        if quota_bytes is not None:
            check_quota(quota_bytes)
        folder = Folder(str(uuid.uuid4()), owner, name, self._clock(), quota_bytes)
        with _CHANGES.counted(owner):
            self._store.folders.add(folder)
            return folder, self._visited("present", [folder])

    def set_quota(self, name: str, owner: str, quota_bytes: int | None) -> tuple[Folder, Visited]:
        """Set what a folder may hold.

        Raises NotFoundError, BadInputError, and NotPossibleInStateError for a folder that is being removed, or where
        too many are being changed.
        """
        if quota_bytes is not None:
            check_quota(quota_bytes)
        folder = replace(self._kept(name, owner), quota_bytes=quota_bytes)
        with _CHANGES.counted(owner):
            self._store.folders.set_quota(folder, quota_bytes)
            self._measurements.forget(folder)
            return folder, self._visited("present", [folder])

    def share(self, name: str, owner: str, grantee: str, *, read_only: bool) -> Folder:
        """Share a folder, and return it.

        Raises BadInputError for an impossible grantee, NotFoundError, and NotPossibleInStateError for a folder that is
        being removed.
        """
        folder = self._kept(name, owner)
        check_grantee(grantee, owner)
        self._store.folders.share(folder, FolderShare(grantee, read_only))
        return self._store.folders.find(owner, name)

    def unshare(self, name: str, owner: str, grantee: str) -> list[FolderMounter]:
        """End a share; return the sessions of others that keep it until they end. Raises NotFoundError."""
        folder = self._store.folders.find(owner, name)
        self._store.folders.unshare(folder, grantee)
        return [user for user in self._store.folders.mounters().get(folder.id, ()) if user.owner != owner]

    def measured(self, folders: Sequence[Folder]) -> Visited:
        """Return what the folders hold, perhaps as of half a minute ago. Raises as `Measurements.of`."""
        return self._measurements.of(folders, lambda stale: self._visited("measured", stale))

    def remove(self, name: str, owner: str, on_removed: Callable[[str], None]) -> tuple[Folder | None, Visited]:
        """Remove a folder and its data; `on_removed` is called with each agent that removed them.

        Returns the folder as it is left on agents that did not answer, or None. It can be removed again, and not be
        mounted. Raises NotFoundError, and NotPossibleInStateError while a session mounts it, or too many are being
        changed.
        """
        known = {agent.id for agent in self._store.agents.all()}
        found = self._store.folders.find(owner, name)
        with _CHANGES.counted(owner):
            folder = self._store.folders.remove(found, self._clock(), known)
            self._measurements.forget(folder)
            visited = self._visited("absent", [folder], folder.left_on, on_removed)
        # Agents that are no longer known took its data with them.
        gone = {*visited.answers, *(set(folder.left_on) - known)}
        return self._store.folders.removed_from(folder, gone), visited

    def _kept(self, name: str, owner: str) -> Folder:
        """Return a folder that is not being removed: agents would make what they have removed again, for good.

        Raises NotFoundError and NotPossibleInStateError.
        """
        folder = self._store.folders.find(owner, name)
        if folder.removed_at is not None:
            raise NotPossibleInStateError(
                f"folder {name} is being removed; to remove what is left of it, say `muster folder rm {name}` again"
            )
        return folder

    def _visited(
        self,
        state: str,
        folders: Sequence[Folder],
        only: Collection[str] | None = None,
        on_answer: Callable[[str], None] | None = None,
    ) -> Visited:
        visited = Visited()
        reachable: list[str] = []
        for agent in self._store.agents.all():
            if only is not None and agent.id not in only:
                continue
            if agent.state is AgentState.ALIVE:
                reachable.append(agent.id)
            else:
                visited.problems[agent.id] = agent.problem or f"it is {agent.state}"
        if not reachable or not folders:
            return visited

        def record(answer: AgentAnswer) -> None:
            if answer.problem:
                visited.problems[answer.agent_id] = answer.problem
                return
            visited.answers[answer.agent_id] = answer.folders
            if on_answer:
                on_answer(answer.agent_id)

        policy = with_uids(self._policy, self._store, {folder.owner for folder in folders})
        entries = [folder_to_make(folder, policy.uid_of(folder.owner)) for folder in folders]
        gateway = AnsibleGateway(inventory_of(self._settings), self._settings.cluster)
        try:
            gateway.folders(reachable, self._settings.folders_root, state, entries, record)
        except AnsibleFailedError as error:
            visited.problems |= {agent_id: str(error) for agent_id in reachable if agent_id not in visited.answers}
        silent = [agent_id for agent_id in reachable if agent_id not in {*visited.answers, *visited.problems}]
        visited.problems |= dict.fromkeys(silent, "Ansible returned no answer from it")
        return visited

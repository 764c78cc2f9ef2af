"""What an agent says of folders with an owner."""

from collections.abc import Mapping, Sequence
from typing import Any

from muster.contract.values import Amount, ContractError, ContractModel, Line, Many, checked


class FolderState(ContractModel):
    """A folder on one agent; `used_bytes` and `files` are None where counting took too long.

    `quota` is `enforced`, or why it is not, None without a quota. `shared_from` says where a network file system has
    it from.
    """

    path: str
    exists: bool
    used_bytes: Amount | None
    files: Amount | None
    quota: Line | None
    shared_from: Line | None


class FoldersResult(ContractModel):
    """The part of a module's result that speaks of the folders."""

    folders: Many[FolderState]


def folders_from_agent(result: Mapping[str, Any], paths: Sequence[str]) -> tuple[FolderState, ...]:
    """Return the states of these folders, in their order. Raises ContractError."""
    given = {name: result[name] for name in FoldersResult.model_fields if name in result}
    found = checked(FoldersResult, given, "answer").folders
    if [state.path for state in found] != list(paths):
        raise ContractError("answer: folders are not those in the request")
    return found

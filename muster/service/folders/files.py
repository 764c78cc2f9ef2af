"""The files of a folder: listed, read and changed on an agent, with the rights of the user's kernels."""

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from muster.ansible_gateway.agent_program import agent_program
from muster.contract.files import DoneAnswer, FileState, LookAnswer, ReadAnswer, RefusedAnswer, SentAnswer
from muster.contract.values import ContractError, ContractModel, checked
from muster.core.agents.agent import Agent, AgentState
from muster.core.model.folders import Folder, file_path
from muster.core.model.projects import DEFAULT_PROJECT
from muster.core.values.errors import (
    AgentUnreachableError,
    BadInputError,
    MusterError,
    NameTakenError,
    NotFoundError,
    NotPossibleInStateError,
)
from muster.engine.agent_program import AgentProgram, running
from muster.service.at_once import AtOnce
from muster.service.folders.views import FilesView, FileView
from muster.service.identity.owner_uids import check_uid, with_uids
from muster.service.identity.tokens import ScopeError
from muster.settings import Settings
from muster.store.store import Store

MOST_ENTRIES = 1000
MOST_STREAMS = 100
MOST_PROGRAMS = 64
MOST_PROGRAMS_OF_ONE = 8
_MARK = b"muster:files\n"
_MOST_ANSWER_BYTES = 4 << 20
_PATIENCE_S = 30.0
# A tree of many files is removed within one request.
_LONG_PATIENCE_S = 600.0
_AGENTS_AT_ONCE = 16

Answer = TypeVar("Answer", bound=ContractModel)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A path in a folder, on one agent; without one, the first that has it. `owner` is the caller by default.

    By the `project`, folders are reached that are shared with it.
    """

    folder: str
    owner: str | None = None
    path: str = ""
    agent: str | None = None
    project: str = DEFAULT_PROJECT


@dataclass(frozen=True, slots=True)
class ReadFile:
    """What a download is: a file of so many bytes, or a directory as a tar file of unknown length."""

    name: str
    is_directory: bool
    size: int | None


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A download and its pieces. Reading raises AgentUnreachableError where they break off."""

    file: ReadFile
    pieces: Iterator[bytes]


class Upload:
    """A file that is being written: it appears when it is whole."""

    def __init__(self, program: AgentProgram, title: str) -> None:
        self._program = program
        self._title = title

    def write(self, piece: bytes) -> None:
        """Raises as `finish`."""
        if not self._program.write(piece):
            self.finish()

    def finish(self) -> None:
        """Wait until the file is in its place. Raises AgentUnreachableError, and for a full disk."""
        _answer(self._program, DoneAnswer, self._title)


# What reads or writes a file as fast as its user does, and what answers at once.
_STREAMS = AtOnce(MOST_STREAMS, MOST_PROGRAMS_OF_ONE, ("files", "are read or written"))
_PROGRAMS = AtOnce(MOST_PROGRAMS, MOST_PROGRAMS_OF_ONE, ("folders", "are looked into or changed"))


class FolderFiles:
    """The files of one folder for one user, who acts as the owner of their own folders.

    Methods raise NotFoundError, AgentUnreachableError, and as `_error_of`.
    """

    def __init__(self, store: Store, settings: Settings, folder: Folder, user: str) -> None:
        self._store = store
        self._folder = folder
        self._user = user
        self._most_streams = settings.web.files
        policy = settings.launch_policy()
        check_uid(policy, store, user)
        policy = with_uids(policy, store, {user})
        self._request = {
            "root": str(settings.folders_root),
            "folder": folder.path,
            "uid": policy.uid_of(user),
            "gid": policy.gid_of(user),
            # Also for the owner: what others have written belongs to the folder's group.
            "groups": [folder.number],
        }

    def look(self, path: str, agent_id: str | None, *, may_change: bool) -> FilesView:
        """Return an entry; of a directory also what is in it."""
        parts = file_path(path)
        with _PROGRAMS.counted(self._user):
            agent, found, others = self._looked(parts, agent_id, MOST_ENTRIES)
        return FilesView(
            **_facts(found, parts[-1] if parts else self._folder.name),
            path="/".join(parts),
            agent=agent.id,
            other_agents=[one.id for one in others],
            items=[FileView(**_facts(entry)) for entry in found.entries],
            left_out=found.left_out,
            may_change=may_change,
        )

    @contextmanager
    def opened(self, path: str, agent_id: str | None, most_bytes: int | None = None) -> Iterator[OpenedFile]:
        """Open a file, or its first bytes, or a directory as a tar file."""
        parts = file_path(path)
        with _STREAMS.counted(self._user, self._most_streams):
            agent, found, _ = self._looked(parts, agent_id, 0)
            name = parts[-1] if parts else self._folder.name
            if found.kind == "directory":
                with self._asked(agent, "pack", parts) as program:
                    _answer(program, SentAnswer, path)
                    yield OpenedFile(ReadFile(f"{name}.tar", is_directory=True, size=None), program.pieces())
                return
            if found.kind != "file":
                raise NotPossibleInStateError(f"{path} is no file; links are not followed")
            with self._asked(agent, "read", parts, most=-1 if most_bytes is None else most_bytes) as program:
                size = _answer(program, ReadAnswer, path).sent
                yield OpenedFile(ReadFile(name, is_directory=False, size=size), _exactly(program, size, agent, path))

    @contextmanager
    def uploading(self, path: str, agent_id: str | None, size: int, *, replaces: bool) -> Iterator[Upload]:
        """Begin to write a file of so many bytes."""
        parts = self._named(path)
        with _STREAMS.counted(self._user, self._most_streams):
            agent = self._agent(parts[:-1], agent_id)
            with self._asked(
                agent, "write", parts, size=size, replaces=replaces, patience_s=_LONG_PATIENCE_S
            ) as program:
                _answer(program, SentAnswer, path)
                yield Upload(program, path)

    def make_directory(self, path: str, agent_id: str | None) -> None:
        parts = self._named(path)
        self._change(parts[:-1], agent_id, "make", parts)

    def rename(self, path: str, to: str, agent_id: str | None) -> None:
        """Rename or move an entry within the folder; what is there already is never replaced."""
        parts, target = self._named(path), self._named(to)
        if target[: len(parts)] == parts:
            raise BadInputError(f"to: {to!r} is {path!r} itself or in it; write another path")
        self._change(parts, agent_id, "move", parts, to=target)

    def remove(self, path: str, agent_id: str | None) -> None:
        """Remove a file, or a directory with all that is in it."""
        parts = self._named(path)
        self._change(parts, agent_id, "remove", parts, patience_s=_LONG_PATIENCE_S)

    def _named(self, path: str) -> tuple[str, ...]:
        """Return the parts of a path that is not the folder itself. Raises BadInputError."""
        parts = file_path(path)
        if not parts:
            raise BadInputError("path: it names the folder itself; write a path in it such as results/loss.csv")
        return parts

    def _change(
        self,
        there: Sequence[str],
        agent_id: str | None,
        action: str,
        parts: Sequence[str],
        **more: Any,  # noqa: ANN401 - `_asked`'s
    ) -> None:
        """Change an entry on the agent that has what is `there`."""
        with (
            _PROGRAMS.counted(self._user),
            self._asked(self._agent(there, agent_id), action, parts, **more) as program,
        ):
            _answer(program, DoneAnswer, posixpath.join(*parts))

    def _agent(self, parts: Sequence[str], agent_id: str | None) -> Agent:
        """Return the agent of a change: the one that is named, or the first that has the path."""
        return self._named_agent(agent_id) if agent_id is not None else self._looked(parts, None, 0)[0]

    def _named_agent(self, agent_id: str) -> Agent:
        agent = next((one for one in self._store.agents.all() if one.id == agent_id), None)
        if agent is None:
            raise NotFoundError(f"there is no agent {agent_id!r}; see `muster agents`")
        if agent.state is not AgentState.ALIVE:
            raise AgentUnreachableError(f"agent {agent.id}: {agent.problem or f'it is {agent.state}'}")
        return agent

    def _looked(
        self, parts: Sequence[str], agent_id: str | None, most: int
    ) -> tuple[Agent, LookAnswer, Sequence[Agent]]:
        """Return an agent that has the path, what is there, and agents that have another folder of the same name."""
        if agent_id is not None:
            agent = self._named_agent(agent_id)
            return agent, self._look(agent, parts, most), ()
        agents = [agent for agent in self._store.agents.all() if agent.state is AgentState.ALIVE]
        if not agents:
            raise AgentUnreachableError("no agent answers now; try again later")
        with ThreadPoolExecutor(min(_AGENTS_AT_ONCE, len(agents))) as pool:
            looks = list(pool.map(lambda agent: self._look_or_error(agent, parts, most), agents))
        found = [(agent, one) for agent, one in zip(agents, looks, strict=True) if isinstance(one, LookAnswer)]
        if not found:
            # What an agent says of the path counts more than that another one has no such folder.
            raise min((one for one in looks if isinstance(one, MusterError)), key=_says_least)
        first, answer = found[0]
        places = {answer.shared_from or first.id}
        others = []
        for agent, one in found[1:]:
            if (place := one.shared_from or agent.id) not in places:
                places.add(place)
                others.append(agent)
        return first, answer, others

    def _look_or_error(self, agent: Agent, parts: Sequence[str], most: int) -> LookAnswer | MusterError:
        try:
            return self._look(agent, parts, most)
        except MusterError as error:
            return error

    def _look(self, agent: Agent, parts: Sequence[str], most: int) -> LookAnswer:
        with self._asked(agent, "look", parts, most=most) as program:
            return _answer(program, LookAnswer, "/".join(parts) or self._folder.name)

    @contextmanager
    def _asked(
        self,
        agent: Agent,
        action: str,
        parts: Sequence[str],
        *,
        to: Sequence[str] = (),
        most: int = 0,
        size: int = 0,
        replaces: bool = False,
        patience_s: float = _PATIENCE_S,
    ) -> Iterator[AgentProgram]:
        request = {
            **self._request,
            "action": action,
            "path": list(parts),
            "to": list(to),
            "most": most,
            "size": size,
            "replaces": replaces,
        }
        with running(agent, _program(), patience_s=patience_s, title="the program for its folders") as program:
            program.write(json.dumps(request).encode() + b"\n")
            program.skip_to(_MARK)
            yield program


class _NoFolderError(NotFoundError):
    """The folder is not on this agent."""


_ERRORS: Mapping[str, tuple[type[MusterError], str]] = {
    "no-folder": (_NoFolderError, "; it is made there when a session mounts it"),
    "missing": (NotFoundError, ""),
    "taken": (NameTakenError, "; choose another name"),
    "denied": (ScopeError, ""),
    "full": (NotPossibleInStateError, "; remove files, or set a larger quota"),
    "bad-path": (BadInputError, ""),
    "impossible": (NotPossibleInStateError, ""),
}


def _says_least(error: MusterError) -> int:
    return 2 if isinstance(error, _NoFolderError) else 1 if isinstance(error, AgentUnreachableError) else 0


def _answer(program: AgentProgram, kind: type[Answer], title: str) -> Answer:
    """Return the program's answer. Raises the error that it is, and AgentUnreachableError."""
    try:
        said = json.loads(program.line(_MOST_ANSWER_BYTES))
        if isinstance(said, dict) and "problem" in said:
            raise _error_of(checked(RefusedAnswer, said, "answer"), title)
        return checked(kind, said, "answer")
    except (ContractError, ValueError, RecursionError) as error:
        raise AgentUnreachableError(f"the agent's answer is refused: {error}") from None


def _error_of(refused: RefusedAnswer, title: str) -> MusterError:
    """Return an error of the kind that the agent names."""
    kind, remedy = _ERRORS[refused.kind]
    return kind(f"{title}: {refused.problem}{remedy}")


def _exactly(program: AgentProgram, size: int, agent: Agent, path: str) -> Iterator[bytes]:
    """Yield so many bytes. Raises AgentUnreachableError where fewer come, as of a file that is being changed."""
    left = size
    for piece in program.pieces():
        if len(piece) > left:
            break
        left -= len(piece)
        yield piece
    if left:
        raise AgentUnreachableError(f"agent {agent.id}: {path} was changed while it was read")


def _facts(state: FileState, name: str | None = None) -> dict[str, Any]:
    return {
        "name": state.name if name is None else name,
        "kind": state.kind,
        "size_bytes": state.size,
        "modified_at": float(state.modified),
        "reachable": state.is_text,
    }


@cache
def _program() -> str:
    return agent_program("from muster_agent.folders.files import main\nmain()\n", "muster-files")

"""What an agent says of the files of a folder."""

from typing import Annotated, Literal

from pydantic import Field

from muster.contract.values import Amount, ContractModel, Line, Many, Text

FileKind = Literal["directory", "file", "link", "other"]
Name = Annotated[str, Field(max_length=4096)]


class FileState(ContractModel):
    """An entry of a folder; `modified` in seconds since the epoch. One whose name is no text cannot be asked for."""

    name: Name
    is_text: bool
    kind: FileKind
    size: Amount
    modified: Amount


class LookAnswer(FileState):
    """An entry, and the first of those in it."""

    entries: Many[FileState]
    left_out: Amount
    shared_from: Line | None


class ReadAnswer(FileState):
    """A file, and how many bytes of it follow."""

    sent: Amount


class SentAnswer(ContractModel):
    """What follows: nothing, or a stream of unknown length."""

    sent: Amount | None


class DoneAnswer(ContractModel):
    """A change that was made."""

    done: Literal[True]


class RefusedAnswer(ContractModel):
    """Why a request was not carried out."""

    kind: Literal["no-folder", "missing", "taken", "denied", "full", "bad-path", "impossible"]
    problem: Text

"""What flags of the session spec take from files: whole specs, texts, and variables."""

import os
import re
import sys
from pathlib import Path
from typing import Any

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError
from muster.service.yaml_file import read_mapping

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# More than any field takes, so that the spec refuses it with the field's own remedy.
_MOST_BYTES = (2 << 20) + 1


def session_file(path: Path) -> dict[str, Any]:
    """Return the fields of a session file. Raises BadInputError."""
    content = read_mapping(path, f"--file: {path}", "write lines such as cluster_size: 3")
    return {str(key): value for key, value in content.items()}


def with_texts(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the text of the files that flags name; `-` is standard input. Raises BadInputError."""
    read = {name: value for name, value in given.items() if _reads_file(name) and value is not None}
    if sum(value == "-" for value in read.values()) > 1:
        raise BadInputError(f"{' and '.join(read)}: both read standard input; give one of them a file")
    return given | {name: _text(_flag(name), str(value)) for name, value in read.items()}


def variables_of(paths: tuple[Path, ...]) -> dict[str, str]:
    """Read lines NAME=VALUE as Docker does. Empty lines and comments (#) are skipped, and quotes are kept.

    A line with a NAME alone takes the variable from the environment here, if it is set. Raises BadInputError.
    """
    variables: dict[str, str] = {}
    for path in paths:
        for number, line in enumerate(_text("--env-file", str(path)).removeprefix("\ufeff").split("\n"), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            name, equals, value = line.lstrip().removesuffix("\r").partition("=")
            if not _VARIABLE.fullmatch(name):
                raise BadInputError(f"--env-file: {path}:{number}: {name!r} is not a variable name; write NAME=VALUE")
            if equals:
                variables[name] = value
            elif (here := os.environ.get(name)) is not None:
                variables[name] = here
    return variables


def _reads_file(name: str) -> bool:
    extra = SessionSpec.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("reads_file"))


def _flag(name: str) -> str:
    extra: Any = SessionSpec.model_fields[name].json_schema_extra
    return str(extra["flags"][0])


def _text(flag: str, path: str) -> str:
    try:
        if path == "-":
            content = sys.stdin.buffer.read(_MOST_BYTES)
        else:
            with Path(path).open("rb") as file:
                content = file.read(_MOST_BYTES)
        return content.decode(errors="strict" if len(content) < _MOST_BYTES else "replace")
    except OSError as error:
        raise BadInputError(f"{flag}: {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInputError(f"{flag}: {path} is not UTF-8 text; put other data into a data folder (--mount)") from None

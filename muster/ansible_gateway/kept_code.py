"""What is sent to an agent for a module: the name of its sources first, the sources where that is not enough.

The agent's side is `plugins/module_utils/muster_agent/kept_code.py`. Its text comes first in each program.

A program of Ansible's holds the module's sources, or stands for them by a *title*: an empty zip file whose comment is
their name. Ansible then has little to read and to write for each host.
"""

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Callable
from functools import cache

from muster.shipped_files import ansible_root

NOT_KEPT = "code_not_kept"
"""The key of the answer of an agent that needs the sources."""

# How Ansible embeds a module's sources in the program that it sends.
_SOURCES = re.compile(r"zip_data='([A-Za-z0-9+/=]+)'")


SourcesOf = Callable[[str], bytes]
"""Returns the sources that have this name."""


def by_name(program: bytes) -> bytes:
    """Return a program that runs this one of Ansible's if the agent keeps its code, and answers NOT_KEPT if not."""
    text, sources = _divided(program)
    return _with_keeper(
        f"codes = read({name_of(sources)!r})",
        "if codes:",
        f"    run({text!r}, codes)",
        "else:",
        f'    print(\'{{"changed": false, "{NOT_KEPT}": true}}\')',
    )


def with_sources(program: bytes, sources_of: SourcesOf) -> bytes:
    """Return a program that runs this one of Ansible's, and keeps its code."""
    text, sources = _divided(program)
    name = name_of(sources)
    if sources == title(name):
        sources = sources_of(name)
    return _with_keeper(
        "import base64",
        f"codes = compiled(base64.b64decode({base64.b64encode(sources).decode()!r}))",
        f"keep({name!r}, codes)",
        f"run({text!r}, codes)",
    )


def _divided(program: bytes) -> tuple[str, bytes]:
    """Return a program of Ansible's without its sources, and the sources: a zip file.

    Raises ValueError if there are none, as with a module that is not Python.
    """
    text = program.decode()
    found = _SOURCES.search(text)
    if found is None:
        raise ValueError("this program of Ansible's has no sources")
    return text[: found.start(1)] + _empty_zip() + text[found.end(1) :], base64.b64decode(found[1])


def _with_keeper(*lines: str) -> bytes:
    return "\n".join((_keeper(), *lines, "")).encode()


@cache
def _keeper() -> str:
    return (ansible_root() / "plugins" / "module_utils" / "muster_agent" / "kept_code.py").read_text(encoding="utf-8")


def name_of(sources: bytes) -> str:
    """Return a name of what a zip file holds, whenever it was packed: of its files' names, sizes and checksums.

    That of a title is the name of the sources that it stands for.
    """
    with zipfile.ZipFile(io.BytesIO(sources)) as packed:
        if packed.comment:
            return packed.comment.decode()
        files = sorted((file.filename, file.file_size, file.CRC) for file in packed.infolist())
    return hashlib.sha256(repr(files).encode()).hexdigest()[:32]


def title(name: str) -> bytes:
    """Return the zip file that stands for the sources of this name."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as packed:
        packed.comment = name.encode()
    return written.getvalue()


@cache
def _empty_zip() -> str:
    return base64.b64encode(title("")).decode()

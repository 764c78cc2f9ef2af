"""Keep what a test host's Python compiles of archives; the host runs this at each start of Python.

Ansible sends each module as an archive of sources with all that it imports, and Python compiles those anew each time:
that is nearly half of a module's CPU. The hosts of one run of all tests run two thousand of them.
"""

# ruff: noqa: PTH105, PTH123 - pathlib would be loaded at each start, too

import _imp
import marshal
import os
import sys
import zipimport

_DIRECTORY = "/var/cache/compiled-sources"
_compile = zipimport._compile_source  # type: ignore[attr-defined]


def _kept(path, source):
    """Return the code of a source, of any path: as it was compiled before, where it was."""
    file = f"{_DIRECTORY}/{_imp.source_hash(sys.hexversion, source).hex()}"
    try:
        with open(file, "rb") as kept:
            code = marshal.load(kept)
    except (OSError, EOFError, ValueError, TypeError):
        return _compiled(path, source, file)
    _imp._fix_co_filename(code, path)  # type: ignore[attr-defined]
    return code


def _compiled(path, source, file):
    code = _compile(path, source)
    part = f"{file}-{os.getpid()}"
    try:
        with open(part, "wb") as kept:
            marshal.dump(code, kept)
        os.replace(part, file)
    except OSError:
        # Another user than root runs this.
        pass
    return code


zipimport._compile_source = _kept  # type: ignore[attr-defined]

"""A database that is made once; Hypothesis' profile is loaded here, before any property is defined."""

import gc
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import tests.properties  # noqa: F401 - loads the profile
from muster.store.store import Store
from tests.running.forked_ansible import start_ansible_server
from tests.running.kept_strategies import keep_strategies
from tests.running.shared_statements import share_compiled_statements

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them each program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A version manager's `python3` is a shell script, which takes longer than what agents' programs do here.
_python = shutil.which("python3")
if _python and Path(_python).read_bytes().startswith(b"#!"):
    # Ours comes last: a directory such as /usr/bin has other programs, too.
    _without = (directory for directory in os.environ["PATH"].split(":") if directory != str(Path(_python).parent))
    os.environ["PATH"] = ":".join((*_without, f"{sys.base_prefix}/bin"))
share_compiled_statements()
keep_strategies()
# Nearly all that is made from here to the end of the collection stays: searching it took a third of the collection.
gc.disable()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from searching libraries and tests again and again: they stay until the end.

    Of a test's values hardly any lie in cycles, and a search after each 700 of them took a tenth of the CPU.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


_empty_database: list[Path] = []


@pytest.hookimpl(optionalhook=True)
def pytest_before_forks(session: pytest.Session) -> None:
    """Compile the scheduler, or load it, and pages' templates, and make the empty database, once for all workers.

    They share a process that loads Ansible when the first test runs a playbook.
    """
    # Here, since numba's import would be most of a small run's time.
    from muster.service.scheduler.compiled_code import compile_placement  # noqa: PLC0415
    from muster.web.rendering import load_templates  # noqa: PLC0415

    compile_placement()
    start_ansible_server()
    if "empty_database" in {name for item in session.items for name in getattr(item, "fixturenames", ())}:
        _empty_database.append(_made_empty(session.config._tmp_path_factory))  # type: ignore[attr-defined]
        load_templates()
    gc.freeze()


def _made_empty(directories: pytest.TempPathFactory) -> Path:
    path = directories.mktemp("empty") / "muster.db"
    Store(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite file with all migrations and no row, to be copied: migrating is most of a small test's time."""
    return _empty_database[0] if _empty_database else _made_empty(tmp_path_factory)

"""The code of a module is kept on the agent, and only what the agent itself has kept whole is run."""

import io
import os
import subprocess
import sys
import zipfile

import pytest

from tests.modules.agent_code import kept_code

PROGRAM = "import parts.greeting; print(parts.greeting.word, parts.__file__)"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "module-code"


def packed(**sources: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        for name, source in {"parts/__init__": "", "parts/greeting": "word = 'hello'", **sources}.items():
            file.writestr(f"{name}.py", source)
    return written.getvalue()


def test_what_was_kept_runs_without_sources(directory):
    kept_code.keep("key", kept_code.compiled(packed()), directory)
    lines = (
        "import runpy, sys",
        "from pathlib import Path",
        "kept = runpy.run_path(sys.argv[1])",
        "kept['run'](sys.argv[3], kept['read']('key', Path(sys.argv[2])))",
    )
    command = [sys.executable, "-IS", "-c", "\n".join(lines), kept_code.__file__, str(directory), PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "hello /opt/muster/module-code/parts/__init__.py\n"


def test_another_name_has_no_code(directory):
    kept_code.keep("key", kept_code.compiled(packed()), directory)
    assert kept_code.read("another", directory) == {}


def test_another_version_of_python_has_none(directory, monkeypatch):
    kept_code.keep("key", kept_code.compiled(packed()), directory)
    monkeypatch.setattr(sys, "hexversion", sys.hexversion + 1)
    assert kept_code.read("key", directory) == {}


@pytest.mark.parametrize("left", [0, 3, 4, 100, -1])
def test_a_file_of_which_a_part_is_left_is_not_read(directory, left):
    kept_code.keep("key", kept_code.compiled(packed()), directory)
    (path,) = directory.iterdir()
    path.write_bytes(path.read_bytes()[:left])
    assert kept_code.read("key", directory) == {}
    kept_code.keep("key", kept_code.compiled(packed()), directory)
    assert set(kept_code.read("key", directory)) == {"parts", "parts.greeting"}


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_nothing_is_read_or_kept_where_others_may_write(directory, mode):
    kept_code.keep("key", kept_code.compiled(packed()), directory)
    directory.chmod(mode)
    assert kept_code.read("key", directory) == {}
    kept_code.keep("second", kept_code.compiled(packed()), directory)
    assert len(list(directory.iterdir())) == 1


def test_nothing_is_read_or_kept_through_a_link(directory, tmp_path):
    kept_code.keep("key", kept_code.compiled(packed()), tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    assert kept_code.read("key", directory) == {}
    kept_code.keep("second", kept_code.compiled(packed()), directory)
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_nothing_is_kept_on_a_host_that_was_not_provisioned(directory):
    kept_code.keep("key", kept_code.compiled(packed()), directory / "below")
    assert not directory.exists()


def test_the_oldest_are_removed(directory):
    for number in range(12):
        kept_code.keep(f"key{number}", kept_code.compiled(packed()), directory)
        os.utime(kept_code._path(f"key{number}", directory), (number, number))
    kept_code.keep("last", kept_code.compiled(packed()), directory)
    kept = {file.name.split("-")[0] for file in directory.iterdir()}
    assert kept == {"last", *(f"key{number}" for number in range(5, 12))}

"""What builds the GPU libraries on a host takes its compiler as it is, and measures what a context costs there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.native.fake_driver import REPOSITORY
from tests.shipped_program import as_shipped

PROGRAM = as_shipped("roles/fgpu/files/build_fgpu.py")
MIB = 1 << 20


def built(driver, work, **environment):
    """Return the tree that the role's program builds with this driver behind it."""
    native = REPOSITORY / "native"
    names = [path for path in native.rglob("*") if path.suffix in {".c", ".h", ".def"} or path.name == "Makefile"]
    sources = {str(path.relative_to(native)): path.read_text() for path in names}
    done = subprocess.run(
        [sys.executable, "-IS", "-c", PROGRAM, work / "fgpu", driver.directory, "test"],
        input=json.dumps(sources),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (tree,) = done.stdout.split()
    return Path(tree)


def test_the_cost_of_a_context_is_measured_on_each_gpu(fake_driver, tmp_path):
    fake_driver.init(2, 8 << 30, "--context", str(528 * MIB))
    holder = fake_driver.start("context(); allocate(64 * MIB); tell(0); wait()")
    holder.stdout.readline()
    tree = built(fake_driver, tmp_path)
    holder.communicate()
    measured = json.loads((tree / "CONTEXTS").read_text())
    assert measured == dict.fromkeys(fake_driver.uuids(), 528 * MIB)


def test_a_compiler_that_warns_of_what_none_did_before_builds_all_the_same(fake_driver, tmp_path):
    (tmp_path / "news.h").write_text("#warning this is new\n")
    compiler = tmp_path / "bin" / "gcc"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("gcc")} -include {tmp_path}/news.h "$@"\n')
    compiler.chmod(0o755)
    tree = built(fake_driver, tmp_path, PATH=f"{compiler.parent}:{os.environ['PATH']}")
    assert (tree / "lib" / "libcuda.so.1").exists()

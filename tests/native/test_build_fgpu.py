"""What builds the GPU libraries on a host also measures what a context costs there."""

import json
import subprocess
import sys
from pathlib import Path

from tests.native.fake_driver import REPOSITORY
from tests.shipped_program import as_shipped

PROGRAM = as_shipped("roles/fgpu/files/build_fgpu.py")
MIB = 1 << 20


def test_the_cost_of_a_context_is_measured_on_each_gpu(fake_driver, tmp_path):
    fake_driver.init(2, 8 << 30, "--context", str(528 * MIB))
    native = REPOSITORY / "native"
    names = [path for path in native.rglob("*") if path.suffix in {".c", ".h", ".def"} or path.name == "Makefile"]
    sources = {str(path.relative_to(native)): path.read_text() for path in names}
    holder = fake_driver.start("context(); allocate(64 * MIB); tell(0); wait()")
    holder.stdout.readline()
    done = subprocess.run(
        [sys.executable, "-IS", "-c", PROGRAM, tmp_path / "fgpu", fake_driver.directory, "test"],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        check=True,
    )
    holder.communicate()
    (tree,) = done.stdout.split()
    measured = json.loads(Path(tree, "CONTEXTS").read_text())
    assert measured == dict.fromkeys(fake_driver.uuids(), 528 * MIB)

"""Scripts that roles run on hosts bring the modules that they share, and need nothing of Muster's there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from tests.shipped_program import as_shipped


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-IS", "-c", program, *arguments], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_detection_runs_where_nothing_of_musters_is(tmp_path):
    found = json.loads(run(as_shipped("roles/fgpu/files/detect.py"), str(tmp_path)))
    assert found["built"] is None
    assert (found["problem"] is None) == bool(found["driver"])


def test_a_runtime_is_extracted_beside_its_place_where_nothing_of_musters_is(tmp_path):
    (tmp_path / "VERSION").write_text("made elsewhere")
    archive = tmp_path / "archive"
    subprocess.run(["tar", "-czf", archive, "-C", tmp_path, "VERSION"], check=True)
    program = as_shipped("roles/session_runtime/files/build_runtime.py")
    tree = Path(run(program, "extract", str(tmp_path / "runtime"), str(archive)))
    assert tree.parents[1] == tmp_path / "runtime-versions"
    assert (tree / "VERSION").read_text() == "made elsewhere"


def test_a_module_that_is_not_there_is_one_clear_error(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from muster_agent.no_such_module import anything\n")
    with pytest.raises(AnsibleFilterError, match=r"muster_program: .*no_such_module\.py"):
        as_shipped(str(script))

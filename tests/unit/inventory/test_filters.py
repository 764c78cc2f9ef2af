"""The playbooks' filters: Ansible loads them all anew in each task's process that has any filter in its templates."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
_LOAD_ALL = """
import runpy, sys
from pathlib import Path
for path in sorted(Path("filter_plugins").glob("*.py")):
    runpy.run_path(str(path))["FilterModule"]().filters()
print(*sorted({"pydantic", "numpy", "numba", "sqlalchemy"} & set(sys.modules)))
"""


def test_no_filter_loads_a_large_library_before_it_is_used():
    done = subprocess.run([sys.executable, "-c", _LOAD_ALL], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

"""The playbooks' filters: Ansible loads them all anew in each task's process that has any filter in its templates."""

import subprocess
import sys
from pathlib import Path

import yaml

from filter_plugins.control_node import FilterModule

ROOT = Path(__file__).parents[3]
FILTERS = FilterModule().filters()
settings_errors, catalog_errors = FILTERS["muster_settings_errors"], FILTERS["muster_catalog_errors"]
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


def test_settings_are_refused_before_they_are_written_by_the_names_of_the_roles_variables():
    wrong = {"cluster": "a", "scheduling": {"order": "ours", "placement": "nowhere"}, "lost_after": 5, "master_port": 0}
    errors = settings_errors(yaml.safe_dump(wrong), {"lost_after": 5, "master_port": 0}, ["ours"])
    assert {error.partition("; ")[0] for error in errors} == {
        "control_node_settings.master_port: 0 is too small",
        "control_node_settings.lost_after: there is no such field",
        "control_node_scheduling.placement: there is no scheduler plugin 'nowhere'",
    }


def test_settings_that_do_not_agree_are_an_error_of_all_settings():
    (error,) = settings_errors("owner_uid: unix\n", {"owner_uid": "unix"}, [])
    assert error.startswith("control_node_settings: owner_uid: unix needs owner_uid_range")


def test_a_catalog_is_refused_before_it_is_written_by_the_variable_that_it_comes_from():
    wrong = {"images": [{"name": "a", "reference": "a:1", "minimum": {"cpu": "lots"}}]}
    (error,) = catalog_errors(yaml.safe_dump(wrong), "images_catalog")
    assert error.startswith("images_catalog[0].minimum.cpu: 'lots' is not a number")
    assert catalog_errors("images: []\n", "images_catalog") == []

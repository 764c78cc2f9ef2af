"""`./dev lock` was run after each change of what pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKS = {"requirements.lock": ["build"], "requirements-dev.lock": ["build", "test", "lint"]}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def locked(lock: str) -> dict[str, str]:
    """Return the version of each package for this Python, by name."""
    text = re.sub(r"\s*\\\n\s*--hash=", " --hash=", (ROOT / lock).read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert all(" --hash=sha256:" in line for line in lines)
    found = [Requirement(line.partition(" --hash=")[0]) for line in lines]
    here = [one for one in found if one.marker is None or one.marker.evaluate(default_environment())]
    return {one.name.lower().replace("_", "-"): next(iter(one.specifier)).version for one in here}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_satisfies_every_floor(lock):
    versions = locked(lock)
    wanted = [*PROJECT["project"]["dependencies"]]
    wanted += [line for group in LOCKS[lock] for line in PROJECT["dependency-groups"][group]]
    for requirement in map(Requirement, wanted):
        name = requirement.name.lower().replace("_", "-")
        assert requirement.specifier.contains(versions.get(name, "0"), prereleases=True), requirement


def test_tests_run_on_the_versions_that_users_install():
    versions = locked("requirements-dev.lock")
    assert {name: versions[name] for name in locked("requirements.lock")} == locked("requirements.lock")


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index(lock):
    assert "://" not in (ROOT / lock).read_text(encoding="utf-8")

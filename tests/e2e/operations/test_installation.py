"""An installation as docs/operations.md describes it, up to a session that has run, with no checkout in reach."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.control_node import ROOT, SMALL

Run = Callable[..., str]
PLACEMENT = Path("muster/core/scheduling/placement")
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the programs of an environment that was made as docs/operations.md says.

    By a root whose umask hides from users what root makes.
    """
    environment = tmp_path_factory.mktemp("installed") / "control"
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = page.partition("\n## Install\n")[2].partition("\n## ")[0]
    lines = section.split("```\n")[1].splitlines()
    # Tests change no system's packages; this one has it, or there would be no environment for the tests.
    lines.remove("apt-get install --yes python3-venv")
    script = (
        "\n".join(lines).replace("/opt/muster/control", str(environment)).replace("python3 -m", f"{sys.executable} -m")
    )
    # Compiled as it is imported: most of Ansible never is.
    words = ["bash", "-ec", f"umask 077; {script}"]
    listed = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PIP_NO_COMPILE": "0"}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert "site.yml" in listed
    (packages,) = environment.glob("lib/python*/site-packages")
    _take_compiled_code(packages / PLACEMENT)
    return environment / "bin"


def _take_compiled_code(there: Path) -> None:
    """Take the scheduler's compiled code from this checkout, if it is there: numba keeps it beside its source.

    That an installation compiles its own is shown on a fresh machine, where it takes half a minute of CPU too.
    """
    here = ROOT / PLACEMENT
    for compiled in here.glob("__pycache__/*.nb[ic]"):
        (there / "__pycache__").mkdir(exist_ok=True)
        shutil.copy(compiled, there / "__pycache__")
        source = f"{compiled.name.partition('.')[0]}.py"
        assert (there / source).read_bytes() == (here / source).read_bytes()
        # numba looks at the time and the size of the source.
        shutil.copystat(here / source, there / source)


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Run the installed `muster` in an empty directory."""
    config = tmp_path / "muster.yml"
    inventory = tmp_path / "inventory.yml"
    inventory.write_text((ROOT / "inventory" / "local.yml").read_text())
    settings = {
        "cluster": "e2e-wheel",
        "state_dir": str(tmp_path / "state"),
        "inventory": str(inventory),
        "catalog": str(tmp_path / "images.yml"),
        "folders_root": str(tmp_path / "folders"),
        "stop_grace_s": 1,
    }
    (tmp_path / "folders").mkdir()
    config.write_text(yaml.safe_dump(settings))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ANSIBLE_", "VIRTUAL"))}
    environment = {**kept, "MUSTER_CONFIG": str(config)}

    def muster(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [installed / "muster", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert str(ROOT) not in done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return muster


def test_from_the_wheel_to_a_session_that_has_run(run):
    listed = run("playbook")
    assert {"site.yml", "teardown.yml", "drain.yml"} <= {line.split()[0] for line in listed.splitlines()}
    # The control node's role would take the place of this machine's own.
    tags = "docker_engine,session_firewall,session_runtime,images"
    assert "failed=0" in run("playbook", "site.yml", "-i", "inventory.yml", "--tags", tags)
    run("submit", *SMALL, "--name", "first", "--", "echo", "from the wheel")
    for _ in range(10):
        run("pass", "--wait")
        if run("ls", "--json").strip() == "[]":
            break
    assert run("logs", "first") == "from the wheel\n"
    assert "SUCCESS" in run("show", "first")


def test_all_users_can_run_what_root_has_installed(installed):
    environment = installed.parent
    looked = [path for path in environment.rglob("*") if path.name != "__pycache__" and ".nb" not in path.name]
    assert len(looked) > 1000
    assert [path for path in looked if not path.lstat().st_mode & 0o004] == []


def test_a_playbook_that_there_is_not_is_one_line(run):
    assert "PLAYBOOK: there is no 'nosuch'; name one of" in run("playbook", "nosuch", code=2)
    assert "PLAYBOOK: ./nosuch.yml is no file" in run("playbook", "./nosuch.yml", code=2)

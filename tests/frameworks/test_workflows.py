"""The examples of workflow tools in docs/examples, by the public API: `./dev frameworks`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.control_node import ROOT, SCRIPTS, ControlNode
from tests.servers.web_server import web_server

IMAGES = ("cluster-tools", "frameworks")
EXAMPLES = ROOT / "docs" / "examples"
SMALL = "cpu=1, mem='512M'"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with Dask, cloudpickle and Snakemake, in the versions that the images have."""
    directory = tmp_path_factory.mktemp("libraries")
    lines = [
        line
        for name in IMAGES
        for file in (ROOT / "images" / name).glob("*s.txt")
        for line in file.read_text().splitlines()
    ]
    wanted = [line for line in lines if line.startswith(("dask", "snakemake"))]
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", directory, *wanted)
    subprocess.run(install, check=True, timeout=600)
    return directory


@pytest.fixture(scope="module")
def environment(
    node: ControlNode, libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Yield the variables of a program that reaches the server by its socket."""
    with TemporaryDirectory() as short:
        path = Path(short) / "api.sock"
        with web_server(node, tmp_path_factory.mktemp("web"), "--socket", str(path)):
            yield {
                **node.environment,
                "MUSTER_SERVER": f"unix:{path}",
                "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
                "PYTHONPATH": f"{EXAMPLES}:{libraries}:{ROOT}",
            }


def ran(program: str, environment: dict[str, str]) -> list[str]:
    """Return the lines that a Python program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def example(name: str) -> str:
    """Return the program in the docstring of an example."""
    text = (EXAMPLES / name).read_text()
    block = text.partition("\n\n")[2].partition("\n\n\n")[0].split('"""')[0]
    indented = [line for line in block.splitlines() if not line or line.startswith("    ")]
    return "\n".join(line[4:] for line in indented)


def test_functions_are_mapped_over_sessions(environment):
    assert ran(example("muster_map.py"), environment) == ["[1024, 59049, 1048576]"]


def test_a_function_that_fails_says_why(environment):
    program = f"""
from muster.client import Client
from muster_map import Executor, FailedError

with Client() as muster:
    job = Executor(muster, image="cluster-tools", {SMALL}).submit(lambda: 1 / 0)
    try:
        job.result()
    except FailedError as error:
        print(str(error).splitlines()[-1])
"""
    assert ran(program, environment) == ["ZeroDivisionError: division by zero"]


def test_a_dask_cluster_computes_and_ends_with_its_block(node, environment):
    assert ran(example("muster_dask.py"), environment) == ["45"]
    assert node.run("ls", "--json").json() == [] or node.reaches("dask", "TERMINATED")


def test_snakemake_runs_each_job_in_a_session(node, environment):
    workflow = node.folders / "project"
    shutil.copytree(EXAMPLES / "snakemake", workflow, dirs_exist_ok=True)
    for name, text in (("a", "one two"), ("b", "three"), ("c", "")):
        (workflow / f"{name}.txt").write_text(text)
    # What the workflow writes here is to be open to the sessions' user, and their files are to us.
    os.chown(workflow, 1000, 1000)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--profile", "profile"],
        cwd=workflow,
        env=environment,
        umask=0,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (workflow / "total").read_text() == "3\n"
    sessions = node.run("ls", "--all", "--json").json()
    assert len([session for session in sessions if session["name"].startswith("snakejob.")]) == 4

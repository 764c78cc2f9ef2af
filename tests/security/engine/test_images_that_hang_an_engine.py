"""An image whose configuration the engine's runtime cannot take: its sessions fail at once, and nothing hangs."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.engine_host import EngineHost, engine_host
from tests.hostile.image_archives import SmallImage, archive
from tests.modules.cluster_on_host import Cluster, session
from tests.modules.conftest import import_busybox

HOSTILE = "muster-test/hostile:1"
# What the runtime says of them is more than a pipe takes that nobody reads.
VARIABLES = ["A=" + "x" * 100_000 + "\0", "A\0" + "x" * 100_000 + "="]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    """Yield an engine of its own, since one that hangs has to be ended."""
    with engine_host(tmp_path_factory.mktemp("engine")) as made:
        made.do(import_busybox)
        yield made


@pytest.mark.parametrize("variable", VARIABLES, ids=["in its value", "in its name"])
def test_an_image_whose_variable_has_a_nul_byte_fails_its_session_alone(host, tmp_path, capsys, variable):
    def action():
        image = SmallImage(tags=(HOSTILE,), variables=("PATH=/bin", variable))
        subprocess.run(["docker", "load"], input=archive(image.files()), check=True, capture_output=True)
        cluster = Cluster(tmp_path, capsys)
        evil, healthy = session(image=HOSTILE), session()
        results = {entry["id"]: entry for entry in cluster.converge(evil, healthy)["sessions"]}
        assert results[healthy["id"]]["outcome"] == "released"
        assert (results[evil["id"]]["outcome"], results[evil["id"]]["permanent"]) == ("failed", True)
        assert "has an environment variable with a NUL byte" in results[evil["id"]]["error"]
        assert cluster.converge()["report"]["leftovers"] == []
        assert cluster.leaves_nothing()
        cluster.remove()

    host.do(action)

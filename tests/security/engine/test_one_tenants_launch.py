"""A tenant's mounts and image names are what a host cannot make: their session fails, the others of the visit run."""

import pytest

from tests.modules.cluster_on_host import session


def mount(folder: str) -> dict[str, object]:
    return {"folder": folder, "target": "/data", "read_only": False}


@pytest.fixture
def folders(cluster):
    root = cluster.folders_root
    (root / "loop").symlink_to("loop")
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "file").write_text("", encoding="utf-8")
    return root


@pytest.mark.usefixtures("folders")
def test_sessions_that_no_host_can_make_fail_alone(cluster):
    healthy = session()
    evil = [
        *(session(mounts=[mount(name)]) for name in ("loop", "a", "a/x", "file", "file/x", "x" * 300, "x/" * 3000)),
        *(session(image=name) for name in ("@/../../containers/json", "../../info", "a b", "x" * 5000, "sha256:00")),
        session(env={"A": "x" * (1 << 20)}),
        session(env={"A\n=": "x"}),
    ]
    result = cluster.converge(*evil, healthy)
    outcomes = {entry["id"]: entry["outcome"] for entry in result["sessions"]}
    assert outcomes.pop(healthy["id"]) == "released"
    assert [outcomes[entry["id"]] for entry in evil[:12]] == ["failed"] * 12
    errors = [entry["error"] for entry in result["sessions"] if entry["error"]]
    assert all("\n" not in error and "Traceback" not in error for error in errors)
    assert "running" in cluster.states().values()


@pytest.mark.usefixtures("folders")
def test_a_mount_lies_over_nothing_that_makes_a_kernel_however_it_is_written(cluster):
    (cluster.folders_root / "plain").mkdir()
    healthy = session()
    targets = (
        *("/data/../../etc", "//etc", "/run/../etc/x", "/dev/shm", "relative", "/..", "/proc/self/root", "/data/\x00x"),
        *("/opt/muster/runtime/bin/..", "/run/muster/go", "/sys/../run/fgpu/x", "/" + "x" * 5000, "/a/" * 2000),
    )
    names = ("\u00e9" * 200, "\ud800", "../x", "a/../..", "/etc", ".muster", "a/./../.muster/folders", "", ".")
    evil = [
        *(session(mounts=[{**mount("plain"), "target": target}]) for target in targets),
        *(session(mounts=[mount(name)]) for name in names),
    ]
    outcomes = {entry["id"]: entry["outcome"] for entry in cluster.converge(*evil, healthy)["sessions"]}
    assert outcomes.pop(healthy["id"]) == "released"
    assert set(outcomes.values()) == {"failed"}

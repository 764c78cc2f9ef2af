"""A tenant's mounts and image names are what a host cannot make: their session fails, the others of the visit run."""

import subprocess

import pytest

from muster.contract.manifest import Manifest
from muster.contract.outcome import outcomes_from_agent
from tests.modules.cluster_on_host import IMAGE, key_files, session


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


# A shorter one might be the beginning of an image's id.
NO_IMAGE = f"sha256:{'0' * 62}"


@pytest.mark.usefixtures("folders")
def test_sessions_that_no_host_can_make_fail_alone(cluster):
    healthy = session()
    evil = [
        *(session(mounts=[mount(name)]) for name in ("loop", "a", "a/x", "file", "file/x", "x" * 300, "x/" * 3000)),
        *(
            session(image=name)
            for name in ("@/../../containers/json", "../../info", "a b", "x" * 5000, "sha256:" + "0" * 62)
        ),
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


LOUD = """#!/bin/busybox sh
/bin/busybox head -c 300000 /dev/zero | /bin/busybox tr '\\0' x >&2
exit 1
"""


@pytest.fixture
def loud_image(tmp_path):
    """Return an image that says very much before its kernel's sshd is started.

    On a host with shared GPUs, the canary comes from the host and is run by the image's loader. Here the image has it.
    """
    for path, text in (("lib64/ld-linux-x86-64.so.2", ""), ("lib/ld-linux-aarch64.so.1", ""), ("canary", LOUD)):
        file = tmp_path / "image" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
    lines = [f"FROM {IMAGE}", "COPY lib64 /lib64", "COPY lib /lib", "COPY canary /opt/muster/fgpu/bin/canary"]
    (tmp_path / "image/Dockerfile").write_text("\n".join(lines), encoding="utf-8")
    name = f"{IMAGE}-loud"
    subprocess.run(["docker", "build", "--quiet", "--tag", name, str(tmp_path / "image")], check=True)
    yield name
    subprocess.run(["docker", "rmi", "--force", name], check=True)


def test_a_launch_that_fails_with_very_many_words_costs_its_host_no_answer(cluster, loud_image):
    healthy = session()
    share = {"content": "", "mode": "0444"}
    evil = session(image=loud_image, files={**key_files(("main1",)), "fgpu": share})
    result = cluster.converge(evil, healthy)
    manifest = Manifest.model_validate(cluster.manifest(evil, healthy))
    outcomes = outcomes_from_agent(result, manifest)
    assert (outcomes[evil["id"]].outcome, outcomes[healthy["id"]].outcome) == ("failed", "released")
    assert "ended at once with exit code 125: xxx" in outcomes[evil["id"]].error

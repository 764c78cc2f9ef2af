"""An account's files, put into a kernel's layer by the agent, are those that the engine would have unpacked."""

import io
import subprocess
import tarfile

import pytest

from muster.core.spec.mounts import HOME
from tests.modules.agent_code import engine_api, layer_files
from tests.modules.cluster_on_host import IMAGE, session

SHOW = f"""
stat -c '%n %F %a %u %g %N' / /etc /etc/* /etc/ssh/* /etc/profile.d/* /run /home /home/*
stat -c '%n %F %a %u %g %N' {HOME}/.ssh {HOME}/.ssh/*
cat /etc/passwd /etc/group /etc/ssh/ssh_config
touch {HOME}/mine
"""


def entry(name, kind=tarfile.DIRTYPE, mode=0o755, uid=0, gid=0, link=""):
    found = tarfile.TarInfo(name)
    found.type, found.mode, found.uid, found.gid, found.linkname = kind, mode, uid, gid, link
    return found


IMAGES = {
    "nothing": [],
    "odd owners": [
        entry("etc", mode=0o711, uid=7, gid=8),
        entry("etc/profile.d", mode=0o2755, gid=8),
        entry("etc/passwd", tarfile.SYMTYPE, link="/elsewhere"),
        entry("home", mode=0o1777, gid=9),
        entry(HOME[1:], mode=0o700, uid=5),
        entry(f"{HOME[1:]}/.ssh", mode=0o750, uid=5),
    ],
    "links": [
        entry("var"),
        entry("var/home"),
        entry("home", tarfile.SYMTYPE, link="var/home"),
        entry("etc"),
        entry("usr"),
        entry("usr/ssh"),
        entry("etc/ssh", tarfile.SYMTYPE, link="../usr/ssh"),
    ],
}


@pytest.fixture(params=IMAGES)
def image(request, tmp_path):
    """Yield an image of busybox with these entries besides."""
    name = f"{IMAGE}-{request.param.replace(' ', '-')}"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for found in IMAGES[request.param]:
            archive.addfile(found)
    (tmp_path / "entries.tar").write_bytes(buffer.getvalue())
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nADD entries.tar /\n")
    subprocess.run(["docker", "build", "--quiet", "--tag", name, tmp_path], check=True, capture_output=True)
    yield name
    subprocess.run(["docker", "rmi", "--force", name], check=True, capture_output=True)


def test_both_ways_make_the_same_files(cluster, image, monkeypatch):
    archives = []
    put = engine_api.EngineApi.put_archive

    def noted(engine, container_id, archive):
        archives.append(container_id)
        put(engine, container_id, archive)

    monkeypatch.setattr(engine_api.EngineApi, "put_archive", noted)
    by_agent, by_engine = session(image=image), session(image=image)
    cluster.converge(by_agent)
    put_by_engine = len(archives)
    monkeypatch.setattr(layer_files, "layer_of", lambda _container: None)
    cluster.converge(by_agent, by_engine)
    assert put_by_engine == ("links" in image)
    assert len(archives) == put_by_engine + 1
    assert cluster.run_in(by_agent, "main1", "sh", "-c", SHOW) == cluster.run_in(by_engine, "main1", "sh", "-c", SHOW)

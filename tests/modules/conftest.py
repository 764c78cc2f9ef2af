import io
import subprocess
import tarfile

import pytest

from tests.modules.cluster_on_host import IMAGE, RUNTIME, Cluster


def import_busybox():
    """Make an image that holds nothing but busybox; a name of its own, for several processes may run these tests."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("bin", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        archive.add(RUNTIME / "bin/busybox", "bin/busybox")
        for applet in (
            "cat",
            "echo",
            "env",
            "false",
            "id",
            "ls",
            "nc",
            "nslookup",
            "seq",
            "sh",
            "sleep",
            "stat",
            "true",
        ):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    subprocess.run(
        ["docker", "import", "--change", "ENV FROM_IMAGE=yes PATH=/bin", "-", IMAGE],
        input=buffer.getvalue(),
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="session", autouse=True)
def _busybox_image():
    import_busybox()
    yield
    subprocess.run(["docker", "rmi", "--force", IMAGE], check=True, capture_output=True)


@pytest.fixture
def make_cluster(tmp_path, capsys):
    """Return a function that makes a cluster on this host; all that they left is removed afterwards."""
    made = []

    def make():
        made.append(Cluster(tmp_path, capsys))
        return made[-1]

    yield make
    for cluster in made:
        cluster.remove()


@pytest.fixture
def cluster(make_cluster):
    return make_cluster()

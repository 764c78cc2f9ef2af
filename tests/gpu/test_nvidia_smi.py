"""NVIDIA's own nvidia-smi, as Debian offers it (non-free), in a container with a share: on the fake driver's NVML."""

import re
from collections.abc import Iterator

import pytest

from tests.gpu.gpu_host import FOLDERS, GPU_BYTES, GpuHost
from tests.gpu.test_shares import printed
from tests.lab.control_node import LabControlNode

pytestmark = pytest.mark.timeout(600)
MIB = 1 << 20
# With lists of packages of its own, beside the host's. Prints the version of the driver that it belongs to.
FETCH = f"""
set -e
folder=$(mktemp -d)
trap 'rm -rf $folder' EXIT
cd $folder
mkdir -p lists/partial cache/archives/partial parts
. /etc/os-release
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $VERSION_CODENAME" \
  non-free >sources
fetch() {{
  apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::sourcelist=$folder/sources \
    -o Dir::Etc::sourceparts=$folder/parts -o Dir::State::lists=$folder/lists -o Dir::Cache=$folder/cache "$@" >&2
}}
fetch update
fetch download nvidia-smi
dpkg-deb -x nvidia-smi_*.deb unpacked
mkdir -p {FOLDERS}/tools
install -m 755 unpacked/usr/lib/nvidia/current/nvidia-smi {FOLDERS}/tools/nvidia-smi
dpkg-deb -f nvidia-smi_*.deb Version | sed 's/-.*//'
"""
QUERY = "--query-gpu=memory.total,memory.used,utilization.gpu --format=csv,noheader,nounits"


@pytest.fixture
def nvidia_smi(gpu_host: GpuHost) -> Iterator[None]:
    """Install it in the folder of tools; the driver says that it has its version, which it insists on."""
    version = gpu_host.run("sh", "-c", FETCH).out.strip()
    gpu_host.run("/opt/driver/fakegpu", "driver", version)
    yield
    gpu_host.run("/opt/driver/fakegpu", "driver", "999.1")


@pytest.mark.usefixtures("nvidia_smi")
def test_nvidia_smi_shows_the_share(node: LabControlNode) -> None:
    smi = "/tools/nvidia-smi"
    # Beside a program that holds memory.
    script = (
        f"mkfifo /tmp/first; /tools/smi hold {512 * MIB} </tmp/first >/tmp/held & exec 3>/tmp/first;"
        "until [ -s /tmp/held ]; do sleep 0.1; done;"
        f"{smi} {QUERY} && {smi} -L && env -i {smi}; exec 3>&-; wait"
    )
    queried, listed, *table = printed(node, "0.5", script)
    total, used, busy = map(int, queried.split(", "))
    assert (total, busy) == (GPU_BYTES // 4 // MIB, 0)
    assert 512 < used < 1024
    assert re.fullmatch(r"GPU 0: Fake GPU \(UUID: GPU-[-0-9a-f]+\)", listed)
    # Newer versions have wider columns.
    assert re.search(rf"\b{used}MiB / +{total}MiB", "\n".join(table))

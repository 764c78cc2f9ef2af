"""A test host with a GPU, as a site's administrator hands it over: the vendor's driver and its container toolkit are
installed, and nothing of Muster's. The driver is the fake one, at the driver's C interface.
"""

import json
import secrets
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.done import Done
from tests.lab.bring_up import give_what_is_here, provision
from tests.lab.host import ROOT, HostError, docker
from tests.lab.host_network import Host, HostNetwork

NETWORK = HostNetwork("muster-gpu", "192.168.216.0/24", ROOT / ".lab-gpu", engine=True)
INVENTORY = NETWORK.directory / "inventory.yml"
NAME = "gpu-1"
GPU_BYTES = 8 << 30
FOLDERS = "/srv/muster/folders"

# As the vendor's packages do: libraries where the loader finds them, and the hook in the engine's PATH.
INSTALL_DRIVER = f"""
mkdir -p /var/lib/fake-gpu
/opt/driver/fakegpu init --gpus 1 --mem {GPU_BYTES}
ln -sf /opt/driver/libcuda.so.1 /opt/driver/libnvidia-ml.so.1 "/usr/lib/$(uname -m)-linux-gnu/"
ln -sf /opt/driver/hook /usr/bin/nvidia-container-runtime-hook
ldconfig
"""


@dataclass(frozen=True)
class GpuHost:
    """A host with one GPU of 8 GiB, which is cut into two units."""

    host: Host

    def run(self, *command: str, check: bool = True) -> Done:
        done = subprocess.run(["docker", "exec", self.host.name, *command], capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise HostError(f"{' '.join(command)} on {self.host.name}: {done.returncode}\n{done.stdout}{done.stderr}")
        return Done(done.returncode, done.stdout, done.stderr)

    @property
    def inventory(self) -> dict[str, Any]:
        address = self.host.address
        variables = {**NETWORK.inventory_of(self.host), "publish_address": address, "units_per_gpu": 2}
        return {
            "all": {
                "vars": {"ansible_python_interpreter": "/usr/bin/python3"},
                "children": {
                    "control": {"hosts": {"localhost": {"ansible_connection": "local"}}},
                    "agents": {"children": {"default": {"hosts": {NAME: variables}}}, "vars": {}},
                },
            }
        }

    def provision(self, *arguments: str) -> Done:
        INVENTORY.write_text(yaml.safe_dump(self.inventory, sort_keys=False), encoding="utf-8")
        done = provision(*arguments, inventory=INVENTORY, capture_output=True)
        return Done(done.returncode, done.stdout, done.stderr)

    def copy_to_folder(self, folder: str, *files: Path) -> None:
        """Copy data into a folder that sessions can mount."""
        self.run("mkdir", "-p", f"{FOLDERS}/{folder}")
        for file in files:
            docker("cp", str(file), f"{NAME}:{FOLDERS}/{folder}/{file.name}")

    def new_clock(self, folder: str) -> str:
        """Makes a virtual clock in a folder that sessions can mount, and returns its path on the host."""
        path = f"{FOLDERS}/{folder}/{secrets.token_hex(4)}"
        self.run("sh", "-ec", f"mkdir -p {FOLDERS}/{folder}; touch {path}; chmod 666 {path}")
        return path

    def driver_status(self, clock: str) -> dict[str, Any]:
        """Return the devices and their use by processes, at one instant of the processes' clock."""
        on_clock = ("env", "LD_PRELOAD=/opt/driver/libclock.so", f"FAKE_CLOCK={clock}")
        status: dict[str, Any] = json.loads(self.run(*on_clock, "/opt/driver/fakegpu", "status").out)
        return status

    def driver_file(self, name: str) -> Path:
        """Return a copy of one of the driver's files on this machine."""
        copied = NETWORK.directory / name
        docker("cp", f"{NAME}:/opt/driver/{name}", str(copied))
        return copied


def bring_up() -> GpuHost:
    """Return the host, with its driver and not provisioned yet where it is new."""
    (host,) = NETWORK.bring_up([NAME])
    give_what_is_here(host)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["make", "-s", "-j2", "-C", ROOT / "tests/fake_driver", f"OUT={directory}"], check=True)
        docker("exec", NAME, "mkdir", "-p", "/opt/driver")
        docker("cp", f"{directory}/.", f"{NAME}:/opt/driver")
    docker("exec", NAME, "sh", "-ec", INSTALL_DRIVER)
    return GpuHost(host)

"""A real distributed job: one step of PyTorch DDP over gloo, from `env://`, over the overlay and on one host."""

import subprocess
import sys

import pytest

from tests.lab.bring_up import SHARED
from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab

STEP = """
import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="env://")
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
loss = model(torch.full((1, 4), float(rank + 1))).sum()
loss.backward()
gradient = model.module.weight.grad[0, 0].item()
print(f"rank {rank} of {size}: sum {total.item():g}, mean gradient {gradient:g}", flush=True)
dist.destroy_process_group()
# Gloo's threads may still hold tensors when Python goes down, and abort then (pytorch/pytorch#179291).
os._exit(0)
"""


pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def folders(lab: Lab) -> tuple[str, ...]:
    """Return flags that mount PyTorch and the program from the share that every host has."""
    assert lab.hosts
    # Kept for the next run: it is large, and goes with the lab.
    if not (SHARED / "torch" / "torch").is_dir():
        # For the Python of the kernels, which need not be this machine's.
        tell = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
        run = ("docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", "muster/default:latest")
        version = lab.run(lab.hosts[0].name, *run, "-c", tell).out.strip()
        target = ("--target", SHARED / "torch", "--python-version", version, "--only-binary", ":all:")
        install = (sys.executable, "-m", "pip", "install", "--quiet", *target, "torch==2.13.0")
        subprocess.run(install, check=True, timeout=600)
    (SHARED / "job").mkdir(exist_ok=True)
    (SHARED / "job" / "step.py").write_text(STEP)
    return ("--mount", "torch:/torch:ro", "--mount", "job:/job:ro", "--env", "PYTHONPATH=/torch")


@pytest.mark.parametrize(
    ("name", "mem", "hosts"),
    [("over-three-hosts", "14G", 3), ("on-one-host", "1G", 1)],
    ids=["three hosts", "one host"],
)
def test_three_kernels_reduce_together(lab_node: LabControlNode, folders, name: str, mem: str, hosts: int) -> None:
    gang = ("--cluster-size", "3", "--cluster-mode", "multi-node", "--cpu", "1", "--mem", mem, "--on", "all")
    command = ("--wait", "--", "python3", "/job/step.py")
    done = lab_node.run("submit", "--name", name, *gang, *folders, *command, check=False, timeout=600)
    logs = [lab_node.run("logs", f"{name}:{kernel}", check=False).out for kernel in ("main1", "sub1", "sub2")]
    assert done.code == 0, "\n".join([done.out, done.err, *logs])
    assert len(lab_node.show(name)["agents"]) == hosts
    assert lab_node.run("logs", f"{name}:main1").out.splitlines()[-1] == "rank 0 of 3: sum 6, mean gradient 2"
    assert lab_node.run("logs", f"{name}:sub2").out.splitlines()[-1] == "rank 2 of 3: sum 6, mean gradient 2"

"""A real distributed job: one step of PyTorch DDP over gloo, from `env://`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_node import ControlNode

STEP = """
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
"""


@pytest.fixture(scope="module")
def torch_folder(node: ControlNode) -> str:
    target = node.folders / "torch"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", target, "torch==2.13.0"],
        check=True,
        timeout=600,
    )
    work = node.folders / "job"
    work.mkdir()
    (work / "step.py").write_text(STEP)
    return str(Path(target).name)


def test_three_kernels_reduce_together(node, torch_folder):
    done = node.run(
        *("submit", "--name", "ddp", "--cluster-size", "3", "--cpu", "1", "--mem", "1G", "--on", "all", "--wait"),
        *("--mount", f"{torch_folder}:/torch:ro", "--mount", "job:/job:ro", "--env", "PYTHONPATH=/torch"),
        *("--", "python3", "/job/step.py"),
        timeout=600,
    )
    assert done.code == 0
    assert node.run("logs", "ddp:main1").out.splitlines()[-1] == "rank 0 of 3: sum 6, mean gradient 2"
    assert node.run("logs", "ddp:sub2").out.splitlines()[-1] == "rank 2 of 3: sum 6, mean gradient 2"

"""The environment that PyTorch, TensorFlow and MPI expect in each kernel: the table of docs/environment.md."""

import json
from itertools import groupby

from muster.core.launch.slurm import slurm_environment
from muster.core.model.session import Kernel, Session


def environment(session: Session, kernel: Kernel, master_port: int) -> dict[str, str]:
    """Return a kernel's variables. Muster's own replace those of the user."""
    names = [k.name for k in session.kernels]
    replicas = ",".join(f"{role}:{len(list(members))}" for role, members in groupby(session.kernels, lambda k: k.role))
    variables = {
        **session.spec.env,
        "BACKENDAI_SESSION_ID": session.id,
        "BACKENDAI_KERNEL_ID": kernel.id,
        "BACKENDAI_SESSION_NAME": session.name,
        "BACKENDAI_CLUSTER_SIZE": str(len(names)),
        "BACKENDAI_CLUSTER_MODE": str(session.placed_mode),
        "BACKENDAI_CLUSTER_HOST": kernel.name,
        "BACKENDAI_CLUSTER_HOSTS": ",".join(names),
        "BACKENDAI_CLUSTER_ROLE": kernel.role,
        "BACKENDAI_CLUSTER_IDX": str(kernel.index),
        "BACKENDAI_CLUSTER_REPLICAS": replicas,
        "BACKENDAI_CLUSTER_LOCAL_RANK": str(kernel.rank),
    }
    if session.array_id is not None:
        variables |= {
            "MUSTER_ARRAY_ID": session.array_id,
            "MUSTER_ARRAY_INDEX": str(session.array_index),
            "MUSTER_ARRAY_SIZE": str(len(session.spec.array_indexes)),
        }
    if session.spec.tasks is not None:
        variables["MUSTER_TASKS"] = str(session.spec.tasks)
    if len(names) > 1 and session.spec.distributed_env:
        variables |= _distributed(session, kernel, names, master_port)
    if session.spec.slurm_env:
        variables |= slurm_environment(session, kernel)
    return variables


def _distributed(session: Session, kernel: Kernel, names: list[str], master_port: int) -> dict[str, str]:
    agent_id = kernel.allocation.agent_id if kernel.allocation else None
    on_this_agent = [k.id for k in session.kernels if k.allocation and k.allocation.agent_id == agent_id]
    # A kernel sees only its own GPUs, as 0 and on. Programs that choose a GPU by LOCAL_RANK need it to be 0 in each.
    local_rank = 0 if session.spec.local_rank == "kernel" else on_this_agent.index(kernel.id)
    workers = [f"{name}:{master_port}" for name in names]
    return {
        "WORLD_SIZE": str(len(names)),
        "WORLD_RANK": str(kernel.rank),
        "RANK": str(kernel.rank),
        "LOCAL_RANK": str(local_rank),
        "MASTER_ADDR": names[0],
        "MASTER_PORT": str(master_port),
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": kernel.rank}}),
    }

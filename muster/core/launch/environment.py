"""The environment that PyTorch, TensorFlow and MPI expect in each kernel: the table of docs/environment.md."""

import json
from itertools import groupby

from muster.core.launch.slurm import slurm_environment, tasks_of_kernels
from muster.core.model.session import Kernel, Session


def environment(session: Session, kernel: Kernel, master_port: int) -> dict[str, str]:
    """Return a kernel's variables. Those of the user replace what frameworks read, but none that say what it is."""
    return {
        **_for_frameworks(session, kernel, master_port),
        **session.spec.env,
        **_identity(session, kernel),
    }


def overridden_variables(session: Session) -> list[str]:
    """Return the variables that frameworks read and whose value is the user's instead of ours."""
    return sorted(_for_frameworks(session, session.main, 0).keys() & session.spec.env.keys())


def _identity(session: Session, kernel: Kernel) -> dict[str, str]:
    names = [k.name for k in session.kernels]
    replicas = ",".join(f"{role}:{len(list(members))}" for role, members in groupby(session.kernels, lambda k: k.role))
    variables = {
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
        "MUSTER_RESTARTS": str(session.requeues),
    }
    if session.array_id is not None:
        variables |= {
            "MUSTER_ARRAY_ID": session.array_id,
            "MUSTER_ARRAY_INDEX": str(session.array_index),
            "MUSTER_ARRAY_SIZE": str(len(session.spec.array_indexes)),
        }
    if session.spec.tasks is not None or session.spec.tasks_per_kernel is not None:
        variables["MUSTER_TASKS"] = str(sum(tasks_of_kernels(session)))
    return variables


def _for_frameworks(session: Session, kernel: Kernel, master_port: int) -> dict[str, str]:
    # OpenMP would start a thread for each core of the host, in each process.
    threads = kernel.slots.cpu // 1000 // max(tasks_of_kernels(session))
    variables = {"OMP_NUM_THREADS": str(max(1, threads))}
    if len(session.kernels) > 1 and session.spec.distributed_env:
        variables |= _distributed(session, kernel, master_port)
    if session.spec.slurm_env:
        variables |= slurm_environment(session, kernel)
    return variables


def _distributed(session: Session, kernel: Kernel, master_port: int) -> dict[str, str]:
    names = [k.name for k in session.kernels]
    agent_id = kernel.allocation.agent_id if kernel.allocation else None
    on_this_agent = [k.id for k in session.kernels if k.allocation and k.allocation.agent_id == agent_id]
    # A kernel sees only its own GPUs, as 0 and on. Programs that choose a GPU by LOCAL_RANK need it to be 0 in each.
    is_first = session.spec.local_rank == "kernel" or kernel.id not in on_this_agent
    workers = [f"{name}:{master_port}" for name in names]
    return {
        "WORLD_SIZE": str(len(names)),
        "WORLD_RANK": str(kernel.rank),
        "RANK": str(kernel.rank),
        "LOCAL_RANK": "0" if is_first else str(on_this_agent.index(kernel.id)),
        "MASTER_ADDR": names[0],
        "MASTER_PORT": str(master_port),
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": kernel.rank}}),
        "JAX_COORDINATOR_ADDRESS": workers[0],
        "PDSH_RCMD_TYPE": "ssh",
    }

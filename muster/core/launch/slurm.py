"""Slurm's variables for a kernel, with `slurm_env`: the table of docs/slurm.md.

A kernel is a node to a program that reads them, and the processes that `muster-run` starts are its tasks.
"""

from collections.abc import Sequence
from itertools import groupby

from muster.core.model.session import Kernel, Session

_MOST_NUMBER = 0x7FFFFFFF
# Open MPI before and since version 5, MPICH, Intel MPI.
_MPI_BY_SSH = {
    "OMPI_MCA_plm": "rsh",
    "PRTE_MCA_plm": "ssh",
    "HYDRA_BOOTSTRAP": "ssh",
    "I_MPI_HYDRA_BOOTSTRAP": "ssh",
}


def job_number(session_id: str) -> int:
    """Return a session's number as a job: frameworks calculate with it, so it is a positive 31-bit integer."""
    return int(session_id.replace("-", "")[:8], 16) & _MOST_NUMBER or 1


def tasks_of_kernels(session: Session) -> list[int]:
    """Return how many processes `muster-run` starts in each kernel: as many, the first ones one more."""
    spec, kernels = session.spec, len(session.kernels)
    of_each, more = divmod(spec.tasks or kernels * (spec.tasks_per_kernel or 1), kernels)
    return [of_each + (rank < more) for rank in range(kernels)]


def slurm_environment(session: Session, kernel: Kernel) -> dict[str, str]:
    """Return a kernel's variables. Those of a task are the ones of its first; srun sets them for each."""
    tasks = tasks_of_kernels(session)
    names = ",".join(member.name for member in session.kernels)
    count = str(len(tasks))
    cpus = _whole_cpus(kernel)
    number = str(job_number(session.id))
    variables = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NAME": session.array_name or session.name,
        "SLURM_JOB_USER": session.owner,
        "SLURM_JOB_PARTITION": session.spec.resource_group,
        "SLURM_JOB_ACCOUNT": session.spec.project,
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
        "SLURM_NTASKS": str(sum(tasks)),
        "SLURM_NPROCS": str(sum(tasks)),
        "SLURM_TASKS_PER_NODE": _repeated(tasks),
        "SLURM_CPUS_PER_TASK": str(max(1, cpus // max(tasks))),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_JOB_CPUS_PER_NODE": _repeated([_whole_cpus(member) for member in session.kernels]),
        "SLURM_MEM_PER_NODE": str(kernel.slots.mem >> 20),
        "SLURMD_NODENAME": kernel.name,
        "SLURM_NODEID": str(kernel.rank),
        "SLURM_PROCID": str(sum(tasks[: kernel.rank])),
        "SLURM_LOCALID": "0",
        "SLURM_RESTART_COUNT": str(session.requeues),
        # MPI's launchers would start their daemons by srun; ours chooses no nodes.
        **_MPI_BY_SSH,
        # JAX takes a process for one of Slurm's by these.
        "SLURM_STEP_NODELIST": names,
        "SLURM_STEP_NUM_NODES": count,
    }
    if tasks[0] == tasks[-1]:
        variables["SLURM_NTASKS_PER_NODE"] = str(tasks[0])
    if kernel.slots.gpu:
        variables["SLURM_GPUS_ON_NODE"] = str(kernel.slots.gpu)
    if session.array_id is not None:
        indexes = session.spec.array_indexes
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(job_number(session.array_id)),
            "SLURM_ARRAY_TASK_ID": str(session.array_index),
            "SLURM_ARRAY_TASK_COUNT": str(len(indexes)),
            "SLURM_ARRAY_TASK_MIN": str(indexes[0]),
            "SLURM_ARRAY_TASK_MAX": str(indexes[-1]),
        }
    return variables


def _whole_cpus(kernel: Kernel) -> int:
    return max(1, kernel.slots.cpu // 1000)


def _repeated(values: Sequence[int]) -> str:
    """Return numbers as Slurm writes them: `4(x2),3`."""
    runs = [(value, len(list(same))) for value, same in groupby(values)]
    return ",".join(f"{value}(x{times})" if times > 1 else str(value) for value, times in runs)

"""The files by which a kernel learns how to begin: the entrypoint reads them in its key directory."""

from collections.abc import Mapping

from muster.contract.manifest import FileEntry
from muster.core.launch.slurm import job_number
from muster.core.model.session import Kernel, Session
from muster.core.spec.log_files import expanded, log_path
from muster.core.spec.mounts import HOME

Files = dict[str, FileEntry]
_NO_INDEX = "0"


def startup_files(session: Session, kernel: Kernel, secrets: Mapping[str, str]) -> Files:
    """Return a kernel's start-up files by name. Raises KeyError for a secret that `secrets` (values by name) lacks."""
    spec = session.spec
    files: Files = {}
    if spec.bootstrap is not None:
        files["bootstrap"] = FileEntry(content=spec.bootstrap, mode="0755")
    if spec.workdir is not None:
        files["workdir"] = FileEntry(content=spec.workdir, mode="0444")
    if spec.input is not None and runs_the_command(session, kernel):
        files["stdin"] = FileEntry(content=spec.input, mode="0444")
    if runs_the_command(session, kernel):
        files |= log_files(session, kernel)
    for secret in spec.secrets:
        files[f"secrets/{secret.name}"] = FileEntry(content=secrets[secret.name], mode="0400")
    exported = [f"{secret.env} {secret.name}\n" for secret in spec.secrets if secret.env is not None]
    linked = [f"{secret.name} {secret.path}\n" for secret in spec.secrets if secret.path is not None]
    if exported:
        files["secret_env"] = FileEntry(content="".join(exported), mode="0400")
    if linked:
        files["secret_links"] = FileEntry(content="".join(linked), mode="0400")
    return files


def log_files(session: Session, kernel: Kernel) -> Files:
    """Return the files that name a kernel's log files: each an absolute path in the kernel.

    `%j` is the session's id, or its number as a job where it has Slurm's variables.
    """
    spec = session.spec

    def number(session_id: str) -> str:
        return str(job_number(session_id)) if spec.slurm_env else session_id

    job = number(session.id)
    values = {
        "A": number(session.array_id or session.id),
        "a": _NO_INDEX if session.array_index is None else str(session.array_index),
        "J": job,
        "j": job,
        "N": kernel.name,
        "n": str(kernel.rank),
        "s": "batch",
        "t": str(kernel.rank),
        "u": session.owner,
        "x": session.array_name or session.name,
    }
    directory = spec.workdir or HOME
    return {
        name: FileEntry(content=log_path(expanded(pattern, values), directory), mode="0444")
        for name, pattern in (("output", spec.output), ("error", spec.error))
        if pattern is not None
    }


def runs_the_command(session: Session, kernel: Kernel) -> bool:
    """Return whether the kernel's command is the session's own, not its role's."""
    main = session.main.command
    return main is not None and (kernel.rank == 0 or (session.spec.run_on == "all" and kernel.command == main))

"""The files by which a kernel learns how to begin: the entrypoint reads them in its key directory."""

from collections.abc import Mapping

from muster.contract.manifest import FileEntry
from muster.core.model.session import Kernel, Session

Files = dict[str, FileEntry]


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
    for secret in spec.secrets:
        files[f"secrets/{secret.name}"] = FileEntry(content=secrets[secret.name], mode="0400")
    exported = [f"{secret.env} {secret.name}\n" for secret in spec.secrets if secret.env is not None]
    linked = [f"{secret.name} {secret.path}\n" for secret in spec.secrets if secret.path is not None]
    if exported:
        files["secret_env"] = FileEntry(content="".join(exported), mode="0400")
    if linked:
        files["secret_links"] = FileEntry(content="".join(linked), mode="0400")
    return files


def runs_the_command(session: Session, kernel: Kernel) -> bool:
    """Return whether the kernel's command is the session's own, not its role's."""
    main = session.main.command
    return main is not None and (kernel.rank == 0 or (session.spec.run_on == "all" and kernel.command == main))

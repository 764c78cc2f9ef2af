"""Check the files that roles/site_ca is to copy to the hosts."""

from collections.abc import Callable, Iterable
from pathlib import Path

_BEGIN = b"-----BEGIN CERTIFICATE-----"


def _certificate_errors(paths: object) -> list[str]:
    # Ansible takes a text for a list of its characters.
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        return [f"site_ca_certificates: {paths!r} is not a list; write a list, even of one"]
    problems = ((path, _problem(Path(str(path)))) for path in paths)
    return [f"site_ca_certificates: {path} {problem}" for path, problem in problems if problem]


def _problem(path: Path) -> str | None:
    if not path.is_absolute():  # it may be in one of several places, where the task that copies it looks
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        return f"cannot be read here: {error.strerror}; name a file of the machine that runs the playbook"
    if _BEGIN in content:
        return None
    return "holds no certificate in PEM; convert one in DER with `openssl x509 -inform der`"


class FilterModule:
    """`paths | muster_certificate_errors`: a line for each file that is no certificate, or is not there."""

    def filters(self) -> dict[str, Callable[[object], list[str]]]:
        return {"muster_certificate_errors": _certificate_errors}

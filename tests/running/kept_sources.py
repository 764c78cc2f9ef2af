"""Ansible's modules on this machine: their Python keeps what it compiles of the archives that Ansible sends."""

from pathlib import Path

_OF_HOSTS = Path(__file__).parents[1] / "lab" / "compiled_sources.py"


def keep_compiled_sources(directory: Path) -> None:
    """Have each Python with this directory in its `PYTHONPATH` keep there what it compiles, as on the lab's hosts."""
    kept = directory / "compiled"
    kept.mkdir()
    text = _OF_HOSTS.read_text(encoding="utf-8").replace("/var/cache/compiled-sources", str(kept))
    (directory / "sitecustomize.py").write_text(text, encoding="utf-8")

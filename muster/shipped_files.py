"""Where the files are that come with Muster beside its Python code: playbooks, roles, plugins."""

from functools import cache
from pathlib import Path


@cache
def ansible_root() -> Path:
    """Return the directory of the playbooks: in the package when it was installed, beside it in a checkout."""
    package = Path(__file__).parent
    bundled = package / "_ansible"
    return bundled if bundled.is_dir() else package.parent


def scheduler_plugin(name: str, site: Path) -> Path | None:
    """Return the file of a queue order or placement policy, the site's own before ours; None where there is none."""
    return next((path for path in _places(name, site) if path.is_file()), None)


@cache
def _places(name: str, site: Path) -> tuple[Path, ...]:
    """Return where a plugin may be: each decision looks there, and to put paths together takes longer than that."""
    return tuple(directory / f"{name}.py" for directory in _scheduler_plugins(site))


def scheduler_plugin_names(site: Path) -> list[str]:
    return sorted({path.stem for directory in _scheduler_plugins(site) for path in directory.glob("*.py")})


def _scheduler_plugins(site: Path) -> tuple[Path, Path]:
    return site, ansible_root() / "plugins" / "scheduler"

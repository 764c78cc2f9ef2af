"""Scripts of roles as hosts get them."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def as_shipped(path: str) -> str:
    """Return the program that a role makes of the script at this path below the repository."""
    spec = spec_from_file_location("programs", _ROOT / "filter_plugins" / "programs.py")
    filters = module_from_spec(spec)
    spec.loader.exec_module(filters)
    return filters.FilterModule().filters()["muster_program"](str(_ROOT / path))

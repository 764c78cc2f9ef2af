"""Check the folders that roles/folders is to make."""

import re
from collections.abc import Callable, Iterable, Mapping

_ROOT = re.compile(r"/[^/].*")
_NO_NAME = re.compile(r"^$|^/|(^|/)\.\.?(/|$)")
_MODE = re.compile(r"0?[0-7]{3,4}|[ugoa]*[-+=][rwxXstugo,+=-]*")
# YAML reads 0755 as a number of this size at the most; 755 is another, and stands for 01363.
_MOST_NUMBER = 0o777


def _folder_errors(root: object, mode: object, folders: Iterable[Mapping[str, object]]) -> list[str]:
    errors = []
    if not isinstance(root, str) or not _ROOT.fullmatch(root):
        errors.append(f"folders_root: {root!r} is not an absolute path; write one such as /srv/muster/folders")
    errors += _mode_errors(mode, "folders_mode")
    for folder in folders:
        name = str(folder["name"])
        if _NO_NAME.search(name):
            errors.append(f"folders_list: {name!r} is not a path below folders_root; write one such as datasets")
        errors += _mode_errors(folder.get("mode", "0755"), f"folders_list: mode of {name}")
    return errors


def _mode_errors(mode: object, field: str) -> list[str]:
    if isinstance(mode, int) and not isinstance(mode, bool):
        if 0 <= mode <= _MOST_NUMBER:
            return []
        return [f'{field}: {mode} without quotes is a number, which stands for {mode:#o}; write it as in "0755"']
    return [] if _MODE.fullmatch(str(mode)) else [f'{field}: {mode!r} is no mode; write one such as "0755"']


class FilterModule:
    """`root | muster_folder_errors(mode, folders)`: a line for each path that leads elsewhere, and each wrong mode."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"muster_folder_errors": _folder_errors}

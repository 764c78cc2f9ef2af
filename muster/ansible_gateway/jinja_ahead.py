"""What Ansible's Jinja would work out anew for each host of each play, worked out once.

Ansible has an environment of Jinja for each host, so what that finds out or compiles is lost.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from types import CodeType

_MARKS = ("{{", "{%", "{#")


def compile_ahead(texts: Iterable[str]) -> None:
    """Compile templates for this process and all that it forks from now on. They render as before."""
    # Ansible reads its configuration while it is imported.
    from ansible._internal._templating._jinja_bits import AnsibleEnvironment  # noqa: PLC0415

    plain = AnsibleEnvironment()
    # Where a backslash stands, Ansible may compile the same text in two ways.
    codes: dict[object, CodeType] = {text: plain.compile(text) for text in texts if "\\" not in text}
    of_jinja = AnsibleEnvironment.compile

    def known_or_compiled(environment: Any, source: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        # An overlay is an environment with options of one template.
        if isinstance(source, str) and not (arguments or options or environment.overlayed):
            code = codes.get(source)
            if code is not None:
                return code
        return of_jinja(environment, source, *arguments, **options)

    AnsibleEnvironment.compile = known_or_compiled


def know_filters_of_jinja() -> None:
    """Let Ansible find Jinja's own filters and tests at once, in place of searching its plugins for each name first.

    Those that a plugin has replaced stay replaced.
    """
    from ansible._internal._templating import _jinja_bits  # noqa: PLC0415
    from ansible.plugins.loader import filter_loader, test_loader  # noqa: PLC0415

    for loader, of_jinja in (
        (filter_loader, _jinja_bits._BUILTIN_FILTERS),  # noqa: SLF001
        (test_loader, _jinja_bits._BUILTIN_TESTS),  # noqa: SLF001
    ):
        # The loader looks at its files when it is asked first. Some of ours import pydantic, in 0.1 s.
        list(loader.all())
        loader._cached_non_collection_wrappers = {**of_jinja, **loader._cached_non_collection_wrappers}  # noqa: SLF001


def templates_in(files: Iterable[Path]) -> list[str]:
    """Return the templates in these YAML files."""
    return [text for file in files for text in _templates(yaml.safe_load(file.read_text(encoding="utf-8")))]


def _templates(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if any(mark in value for mark in _MARKS):
            yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _templates(part)

"""Session files as text: read with care, since they come from anywhere, and written to be copied."""

import json
from collections.abc import Mapping
from datetime import date
from typing import Any

import yaml

from muster.core.values.errors import FieldError, SpecError

_MOST_NODES = 10_000


class _Loader(yaml.SafeLoader):
    """Without aliases, a few lines of which can stand for more than a machine holds; and not for long."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise yaml.YAMLError(f"it holds more than {_MOST_NODES} values")
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias (*); write what it stands for")
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stand as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def fields_of(text: str, field: str) -> dict[str, Any]:
    """The fields that YAML or JSON holds, as plain data. Raises SpecError about `field`."""
    try:
        content = yaml.load(text, _Loader)  # noqa: S506 - it is a safe loader
        plain = _plain({} if content is None else content)
        # What is half of a surrogate pair goes no further.
        json.dumps(plain, ensure_ascii=False).encode()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"it is not YAML: {' '.join(str(error).split())}"
        raise SpecError([FieldError(field, problem, "write lines such as cluster_size: 3")]) from None
    if not isinstance(plain, dict):
        raise SpecError([FieldError(field, "it holds no mapping", "write lines such as cluster_size: 3")])
    return plain


def text_of(fields: Mapping[str, Any]) -> str:
    if not fields:
        return ""
    return yaml.dump(dict(fields), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def _plain(content: object) -> Any:  # noqa: ANN401 - plain data
    match content:
        case Mapping():
            return {str(key): _plain(value) for key, value in content.items()}
        case list():
            return [_plain(value) for value in content]
        case date():
            return content.isoformat()
        case None | bool() | int() | float() | str():
            return content
    raise ValueError(f"{type(content).__name__} is nothing that a session file holds")

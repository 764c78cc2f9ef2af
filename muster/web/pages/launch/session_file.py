"""Session files as text: parsed with limits, since their writers are not trusted, and written to be copied."""

import json
from collections.abc import Mapping
from datetime import date
from typing import Any

import yaml

from muster.core.values.errors import FieldError, SpecError
from muster.yaml_text import yaml_content

_MAX_NODES = 10_000
_MAX_NUMBER = 100
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class _Loader(yaml.SafeLoader):
    """A safe loader without aliases, since a few of them can expand beyond any memory, and with limits on values.

    A number such as 1:1:1 is read in a time that grows with the square of its length.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise yaml.YAMLError(f"it holds more than {_MAX_NODES} values")
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias (*); write what it stands for")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER:
            raise yaml.YAMLError(f"it holds a number of more than {_MAX_NUMBER} characters")
        return node


class _Dumper(yaml.SafeDumper):
    """A dumper that writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def fields_of(text: str, field: str) -> dict[str, Any]:
    """Return the fields in YAML or JSON, as plain data. Raises SpecError about `field`."""
    try:
        content = yaml_content(text, _Loader)
        plain = _plain({} if content is None else content)
        # Half of a surrogate pair cannot be encoded.
        json.dumps(plain, ensure_ascii=False).encode()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"it is not YAML: {' '.join(str(error).split())}"
        raise SpecError([FieldError(field, problem, "write lines such as cluster_size: 3")]) from None
    if not isinstance(plain, dict):
        raise SpecError([FieldError(field, "it is not a mapping of fields", "write lines such as cluster_size: 3")])
    return plain


def text_of(fields: Mapping[str, Any]) -> str:
    """Return the fields as YAML; an empty text for none."""
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
    raise ValueError(f"a session file cannot hold {type(content).__name__}")

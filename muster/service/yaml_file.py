"""YAML files that users write for one command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from muster.core.values.errors import BadInputError
from muster.yaml_text import yaml_content


def read_mapping(path: Path, name: str, remedy: str) -> Mapping[Any, Any]:
    """Return the mapping that a file holds. Raises BadInputError, in which the file is called `name`."""
    try:
        content = yaml_content(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise BadInputError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, Mapping):
        raise BadInputError(f"{name} holds no mapping; {remedy}")
    return content

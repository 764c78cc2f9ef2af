"""YAML that people write, read so that whatever is wrong with it is a `yaml.YAMLError` of one line."""

from typing import Any

import yaml

_MOST_VALUES = 1_000_000


class Loader(yaml.SafeLoader):
    """A safe loader of files whose aliases stay within bounds: a few of them can stand for more than any memory."""

    def get_single_node(self) -> yaml.Node | None:
        root = super().get_single_node()
        if root is None:
            return None
        sizes: dict[int, int] = {}
        if _size(root, sizes) > max(_MOST_VALUES, len(sizes)):
            raise yaml.YAMLError(f"its aliases (*) stand for more than {_MOST_VALUES} values")
        return root


def yaml_content(text: str, loader: type[yaml.SafeLoader] = Loader) -> Any:  # noqa: ANN401 - as it is written
    """Return what a text in YAML holds. Raises yaml.YAMLError, also where PyYAML lets errors of Python through."""
    try:
        return yaml.load(text, loader)  # noqa: S506 - a safe loader
    except RecursionError:
        raise yaml.YAMLError("its values are nested too deeply") from None
    except (ValueError, OverflowError) as error:
        # A number of thousands of digits, a day that no month has, a character that there is not.
        raise yaml.YAMLError(str(error)) from None
    except (LookupError, AttributeError, TypeError):
        # What PyYAML makes of a text whose tag says that it is a truth value, a number or a time.
        raise yaml.YAMLError("a value is not what its tag says") from None


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many values a node holds, those of an alias counted wherever it is. Raises yaml.YAMLError.

    `sizes` has those that are known, by id; 0 is of one that is being counted.
    """
    known = sizes.get(id(node))
    if known == 0:
        raise yaml.YAMLError("a value holds itself")
    if known is None:
        sizes[id(node)] = 0
        known = 1
        for part in node.value if isinstance(node, yaml.CollectionNode) else ():
            known += sum(_size(one, sizes) for one in part) if isinstance(part, tuple) else _size(part, sizes)
        sizes[id(node)] = known
    return known

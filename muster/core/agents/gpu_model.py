"""GPU models by the names that people use for them."""

import re
from functools import cache

_SEPARATORS = re.compile(r"[^a-z0-9]+")


def is_of_model(model: str, name: str) -> bool:
    """Return whether `name` names a GPU that its driver calls `model`: the name's words stand in it in one piece.

    `A100` is an `NVIDIA A100-SXM4-80GB`, whatever the case; `A10` is none.
    """
    model_words, name_words = _words(model), _words(name)
    last = len(model_words) - len(name_words)
    return bool(name_words) and any(model_words[at : at + len(name_words)] == name_words for at in range(last + 1))


@cache
def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, _SEPARATORS.split(text.lower())))

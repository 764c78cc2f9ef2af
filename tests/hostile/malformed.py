"""What a host that is not to be trusted could say: values with something else in them."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from muster.contract.values import ContractError

Path = tuple[str | int, ...]


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just("x" * 100_000),
    st.just(10**30),
    st.just("\x1b[2J\x00"),
    st.lists(st.none(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=1), max_leaves=50),
)


def paths(value: object) -> Iterator[Path]:
    """Yield the paths of all values, also of inner ones and of those nested more deeply than calls may be."""
    left: list[tuple[Path, object]] = [((), value)]
    while left:
        path, here = left.pop()
        if path:
            yield path
        items = list(here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ())
        left += [((*path, key), item) for key, item in reversed(items)]


def problem_of(read: Callable[[], object]) -> str:
    """Return the line by which a value is refused; empty if it is accepted."""
    try:
        read()
    except ContractError as error:
        return str(error)
    return ""


def changed(report: dict[str, Any], path: Path, change: str, odd: object) -> dict[str, Any]:
    made = copy.copy(report)
    *way, last = path
    place: Any = made
    for step in way:
        place[step] = copy.copy(place[step])
        place = place[step]
    if change == "removed":
        del place[last]
    elif change == "added" and isinstance(place, dict):
        place["extra"] = odd
    elif change == "nested":
        place[last] = [{"inner": place[last]}]
    elif change == "many":
        place[last] = [place[last]] * 70_000
    else:
        place[last] = odd
    return made

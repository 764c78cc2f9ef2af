"""An agent's entry in the inventory: its valid values, and what is wrong with the others."""

import marshal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from muster.core.agents.agent_attributes import AgentAttributes
from muster.core.agents.agent_connection import AgentConnection
from muster.core.spec.base import SpecModel
from muster.core.spec.errors import validated
from muster.core.values.errors import FieldError, SpecError

_Model = TypeVar("_Model", bound=SpecModel)


@dataclass(frozen=True, slots=True)
class AgentInventory:
    """An agent's entry in the inventory; a field that is among the `errors` is as if it were not given."""

    attributes: AgentAttributes
    connection: AgentConnection
    errors: tuple[FieldError, ...]


def agent_inventory(given: Mapping[str, Any]) -> AgentInventory:
    """Return the entry that the variable `agent_attributes` describes. A value of None is none."""
    stated = {name: value for name, value in given.items() if value is not None}
    try:
        # Later versions of the format depend on how often a value is in use.
        return _entry_of(marshal.dumps(stated, 2))
    except ValueError:  # for instance a date
        return _entry(stated)


@lru_cache(maxsize=16_384)
def _entry_of(stated: bytes) -> AgentInventory:
    # Each report of an agent comes with its entry, which seldom changes.
    return _entry(marshal.loads(stated))  # noqa: S302 - it was dumped above


def _entry(stated: Mapping[str, Any]) -> AgentInventory:
    attributes, wrong_attributes = _right(AgentAttributes, stated)
    connection, wrong_connection = _right(AgentConnection, stated)
    return AgentInventory(attributes, connection, (*wrong_attributes, *wrong_connection))


def _right(model: type[_Model], stated: Mapping[str, Any]) -> tuple[_Model, tuple[FieldError, ...]]:
    try:
        return validated(model, stated), ()
    except SpecError as error:
        wrong = {item.field.partition(".")[0] for item in error.errors}
        right = {name: value for name, value in stated.items() if name not in wrong}
        return validated(model, right), error.errors

"""The kinds that the API gives to errors, each by its class: the server writes them, and its client reads them."""

from collections.abc import Mapping

from muster.core.values.errors import (
    AgentUnreachableError,
    AmbiguousNameError,
    BadInputError,
    MusterError,
    NameTakenError,
    NotFoundError,
    NotPossibleInStateError,
    SettingsError,
    SpecError,
    StoreUnavailableError,
    UnwritableError,
)
from muster.service.identity.tokens import NoTokenError, ScopeError

KINDS: Mapping[type[MusterError], str] = {
    SpecError: "spec",
    NotFoundError: "not-found",
    AmbiguousNameError: "ambiguous-name",
    NameTakenError: "name-taken",
    SettingsError: "settings",
    BadInputError: "bad-input",
    NotPossibleInStateError: "not-possible-in-state",
    NoTokenError: "no-token",
    ScopeError: "scope",
    StoreUnavailableError: "store-unavailable",
    UnwritableError: "unwritable",
    AgentUnreachableError: "agent-unreachable",
    MusterError: "failed",
}

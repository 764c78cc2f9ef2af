"""What the web server may request of its broker: the operations by name, and their arguments as JSON.

Replies come from root and are pickled. Requests come from the process that strangers speak to: nothing of them is
unpickled, and each argument is validated by the operation's own annotation.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from muster.core.model.token import Token
from muster.service.agents.resources import ClusterResources
from muster.service.agents.visible_reservations import AdministratorsReservations
from muster.service.folders.owned import OwnedFolders
from muster.service.identity.owned_tokens import OwnedTokens
from muster.service.images.owned import OwnedImages
from muster.service.local_backend import LocalBackend
from muster.service.owned_reach import OwnedReach
from muster.service.questions.queue_pages import QueuePages
from muster.service.scheduler.administrators import AdministratorsLimits, AdministratorsWeights
from muster.service.secrets.owned import OwnedSecrets
from muster.service.sessions.lists import SessionLists
from muster.service.sessions.live import LiveChanges
from muster.service.specs.presets import OwnedPresets
from muster.web.separation.requests import CallerRequests, ServerRequests
from muster.web.separation.wire import MalformedError

# On the connection of a program, beside its terminal's sizes.
EXIT_CODE = b"exit code"


class Credential(BaseModel):
    """The secret of a token or of a browser's sign-in that a caller has shown, or of a Unix user's connection."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["token", "sign-in", "connection"]
    secret: str


class Request(BaseModel):
    """An operation with its arguments, and for whom."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: str
    arguments: dict[str, Any]
    credential: Credential | None = None


class Operation:
    """A function that may be requested. Its first parameter is what it is called on."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @cached_property
    def _signature(self) -> inspect.Signature:
        signature = inspect.signature(self.function)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    @cached_property
    def _adapters(self) -> Mapping[str, TypeAdapter[Any]]:
        parameters = self._signature.parameters.values()
        return {parameter.name: TypeAdapter(_received(parameter.annotation)) for parameter in parameters}

    def encoded(self, arguments: Sequence[object], named: Mapping[str, object]) -> dict[str, Any]:
        """Return the arguments of a call by name, as JSON has them."""
        return {name: _json(value) for name, value in self._signature.bind(*arguments, **named).arguments.items()}

    def decoded(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Return the arguments, each of its annotation's type. Raises MalformedError."""
        try:
            bound = self._signature.bind(**given).arguments
            return {name: self._adapters[name].validate_python(value) for name, value in bound.items()}
        except (TypeError, ValidationError, RecursionError) as error:
            raise MalformedError(f"arguments of {self.function.__qualname__}: {type(error).__name__}") from None


def _received(annotation: Any) -> Any:  # noqa: ANN401 - whatever a parameter says
    """Return what an argument of this annotation must be when it comes as JSON."""
    if annotation == Mapping[str, Any]:
        # Any JSON: its words may be ones that cannot be encoded, and who reads it says so.
        return dict
    return list[get_args(annotation)] if get_origin(annotation) is Iterable else annotation  # type: ignore[misc]


def _json(value: object) -> Any:  # noqa: ANN401 - whatever JSON holds
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json(item) for item in value]
    return value


def _of(prefix: str, functions: Iterable[Callable[..., Any]]) -> dict[str, Operation]:
    return {f"{prefix}.{function.__name__}": Operation(function) for function in functions}


OPERATIONS: Mapping[str, Operation] = {
    **_of(
        "server",
        (
            ServerRequests.begin_oidc,
            ServerRequests.check_database,
            ServerRequests.finish_oidc,
            ServerRequests.heartbeat,
            ServerRequests.measure,
            ServerRequests.note,
            ServerRequests.server_settings,
            ServerRequests.sign_out,
        ),
    ),
    # From here on each is called on what the caller's own token gives: the broker looks that up for each request.
    **_of(
        "caller",
        (
            CallerRequests.changes_after,
            CallerRequests.measure,
            CallerRequests.remove_folder,
            CallerRequests.session_usage,
            CallerRequests.session_with_shares,
            CallerRequests.sign_in,
            CallerRequests.still_runs,
            CallerRequests.token,
            CallerRequests.usage_now,
        ),
    ),
    **_of(
        "backend",
        (
            LocalBackend.agent,
            LocalBackend.agents,
            LocalBackend.check_may_change,
            LocalBackend.details,
            LocalBackend.drain,
            LocalBackend.dry_run,
            LocalBackend.extend,
            LocalBackend.find,
            LocalBackend.gpus,
            LocalBackend.heartbeat,
            LocalBackend.hold,
            LocalBackend.launch_choices,
            LocalBackend.named,
            LocalBackend.overview,
            LocalBackend.queue,
            LocalBackend.release,
            LocalBackend.rename,
            LocalBackend.report,
            LocalBackend.restart,
            LocalBackend.resume,
            LocalBackend.search,
            LocalBackend.session,
            LocalBackend.spec_again,
            LocalBackend.story,
            LocalBackend.submit,
            LocalBackend.terminate,
            LocalBackend.update,
            LocalBackend.usage_history,
            LocalBackend.why,
        ),
    ),
    **_of(
        "folders",
        (
            OwnedFolders.create,
            OwnedFolders.look,
            OwnedFolders.make_directory,
            OwnedFolders.remove_file,
            OwnedFolders.rename_file,
            OwnedFolders.search,
            OwnedFolders.set_quota,
            OwnedFolders.share,
            OwnedFolders.show,
            OwnedFolders.unshare,
        ),
    ),
    **_of(
        "reach",
        (
            OwnedReach.app_access,
            OwnedReach.kernel,
            OwnedReach.kernel_with_terminal,
            OwnedReach.openable_app,
            OwnedReach.ssh_access,
        ),
    ),
    **_of(
        "reservations",
        (AdministratorsReservations.all, AdministratorsReservations.create, AdministratorsReservations.remove),
    ),
    **_of("limits", (AdministratorsLimits.all, AdministratorsLimits.set, AdministratorsLimits.unset)),
    **_of("weights", (AdministratorsWeights.all, AdministratorsWeights.set, AdministratorsWeights.unset)),
    **_of("queue_pages", (QueuePages.members, QueuePages.page)),
    **_of("lists", (SessionLists.json_text, SessionLists.recent_words, SessionLists.rows)),
    **_of("presets", (OwnedPresets.all, OwnedPresets.named, OwnedPresets.remove, OwnedPresets.save)),
    **_of("tokens", (OwnedTokens.all, OwnedTokens.create, OwnedTokens.revoke)),
    **_of(
        "images",
        (
            OwnedImages.all,
            OwnedImages.begin_commit,
            OwnedImages.commit_state,
            OwnedImages.named,
            OwnedImages.remove,
        ),
    ),
    **_of("secrets", (OwnedSecrets.names, OwnedSecrets.remove, OwnedSecrets.set)),
    **_of(
        "resources",
        (
            ClusterResources.agent,
            ClusterResources.group_names,
            ClusterResources.groups,
            ClusterResources.use,
            ClusterResources.use_by_group,
        ),
    ),
    # After these a connection is what they have opened.
    "open.app": Operation(OwnedReach.openable_app),
    "open.changes": Operation(LiveChanges.running),
    "open.file": Operation(OwnedFolders.open_file),
    "open.log": Operation(OwnedReach.log),
    "open.program": Operation(OwnedReach.open_program),
    "open.terminal": Operation(OwnedReach.open_terminal),
    "open.upload": Operation(OwnedFolders.upload),
}


def request_bytes(operation: str, arguments: Mapping[str, Any], credential: Credential | None) -> bytes:
    """Return a request as it is sent."""
    shown = None if credential is None else {"kind": credential.kind, "secret": credential.secret}
    return json.dumps({"operation": operation, "arguments": arguments, "credential": shown}).encode()


def parse_request(message: bytes) -> Request:
    """Raises MalformedError."""
    try:
        return Request.model_validate(json.loads(message))
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"a request that is none ({type(error).__name__})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownToken(Token):
    """A token with what its holder has shown, by which the broker knows them."""

    credential: Credential = field(repr=False)


def known_token(token: Token, credential: Credential) -> KnownToken:
    """Return the token with what was shown for it."""
    return KnownToken(**{one.name: getattr(token, one.name) for one in fields(token)}, credential=credential)


def known(token: Token) -> KnownToken:
    """Return the token, which the broker must have found. Raises TypeError."""
    if not isinstance(token, KnownToken):
        raise TypeError("the token was not found by the broker")
    return token

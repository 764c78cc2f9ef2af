"""Requests to the broker for which the service layer has no method whose arguments can be sent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from muster.core.model.token import Token
from muster.service.folders.views import FolderRemovedView
from muster.service.identity.oidc import Begun, SignedIn
from muster.service.metrics import Measures, Meter
from muster.service.questions.views import HeartbeatView
from muster.service.service import Service
from muster.service.sessions.live import LiveChange, LiveChanges
from muster.service.sessions.views import SessionView
from muster.service.usage.views import CurrentUsagesView
from muster.service.usage.watched import SessionUsage, UsageCache
from muster.settings import LogFormat
from muster.web_settings import WebSettings


class AuditRecord(BaseModel):
    """A record of a request, for the audit log."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: str | None
    token: str | None
    address: str | None = Field(alias="from")
    method: str
    path: str
    sessions: list[str]
    owner: str | None
    status: int
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings that the web server needs."""

    web: WebSettings
    log_format: LogFormat


@dataclass(frozen=True, slots=True)
class Readers:
    """What reads once for all callers."""

    live: LiveChanges
    usage: UsageCache
    meter: Meter


class ServerRequests:
    """The requests of the web server itself: about no session."""

    def __init__(self, service: Service, readers: Readers) -> None:
        self._service = service
        self._readers = readers
        self._audit = service.audit_log()

    def server_settings(self) -> ServerSettings:
        return ServerSettings(self._service.settings.web, self._service.settings.log_format)

    def check_database(self) -> None:
        self._service.check_database()

    def heartbeat(self) -> HeartbeatView:
        return self._service.heartbeat()

    def measure(self) -> Measures:
        """Return what is read without a token, where the site lets addresses do so: the server alone knows these."""
        return self._readers.meter.measure(None)

    def sign_out(self, secret: str) -> None:
        self._service.tokens.sign_out(secret)

    def begin_oidc(self, return_to: str) -> Begun:
        return self._service.oidc.begin(return_to)

    def finish_oidc(self, sealed: str, state: str, code: str, issuer: str | None) -> SignedIn:
        """Sign in whom the provider says that it is: what the server sends holds nobody's name."""
        return self._service.oidc.finish(sealed, state, code, issuer)

    def note(self, record: AuditRecord) -> None:
        """Add a line to the audit log: nothing that is there can be changed or read this way."""
        self._audit.write({"source": "server", **record.model_dump(by_alias=True, exclude_unset=True)})


class CallerRequests:
    """The requests of a caller beside the methods of their backend."""

    def __init__(self, service: Service, token: Token, readers: Readers) -> None:
        self._service = service
        self._token = token
        self._readers = readers
        self.backend = service.backend(token)

    def token(self) -> Token:
        return self._token

    def sign_in(self) -> tuple[str, float]:
        return self._service.tokens.sign_in(self._token)

    def changes_after(self, number: int, until: int) -> list[LiveChange]:
        seen = self._readers.live.after(number, until, self._token)
        return [live if self._token.sees_all else live.as_owner_sees() for live in seen]

    def measure(self) -> Measures:
        return self._readers.meter.measure(self._token)

    def session_usage(self, session_id: str) -> SessionUsage:
        return self._readers.usage.of(self.backend.find(session_id), self._token)

    def session_with_shares(self, session_id: str) -> SessionView:
        return self.backend.session_with_shares(self.backend.find(session_id))

    def still_runs(self, session_id: str, generation: int) -> bool:
        """Return whether the session runs, in this launch."""
        return self.backend.still_runs(replace(self.backend.find(session_id), generation=generation))

    def usage_now(self, references: Sequence[str], interval_s: float) -> CurrentUsagesView:
        return next(iter(self.backend.usage_samples(references, interval_s, once=True)))

    def remove_folder(self, name: str, owner: str | None) -> FolderRemovedView:
        return self.backend.folders.remove(name, owner, lambda _agent: None)

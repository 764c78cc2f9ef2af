"""What the API alone has: bodies of requests, and answers about the server itself."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from muster.core.images.committed import MAX_NAME, NAME_PATTERN, TAG_PATTERN
from muster.core.model.folders import GRANTEE_PATTERN, MIN_QUOTA_BYTES
from muster.core.model.folders import NAME_PATTERN as FOLDER_PATTERN
from muster.core.model.policy import Limit
from muster.core.model.token import Scope
from muster.core.spec.session_spec import NAME_PATTERN as SESSION_PATTERN
from muster.service.secrets.secrets import MAX_SECRET_BYTES
from muster.service.sessions.later_ends import MOST_S
from muster.service.view import View
from muster.settings_section import LEAST_WEIGHT, MOST_AMOUNT, MOST_WEIGHT


def matches(*patterns: re.Pattern[str], between: str = "") -> dict[str, Any]:
    """Return the part of a text's schema that says what all of it matches; the service checks it, in its own words."""
    return {"pattern": f"^{between.join(f'(?:{pattern.pattern})' for pattern in patterns)}$"}


class DrainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=1000, description="shown with the agent")


class References(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sessions: list[Annotated[str, Field(max_length=255)]] = Field(
        max_length=10_000, description="names, ids, or starts of ids"
    )


class ExtendRequest(References):
    seconds: int = Field(ge=1, le=MOST_S, description="time that is added to the limit of each")


class VersionView(View):
    muster: str
    api: str


class Health(View):
    status: str


class RenameRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(json_schema_extra=matches(SESSION_PATTERN))


_TEXT = r"^[^\x00]*$"
# A number that all programs write and read alike, as 2^60 is not.
_MOST_BYTES = 10**18
_QUOTA: dict[str, Any] = {"minimum": MIN_QUOTA_BYTES}


class FolderRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=255, json_schema_extra=matches(FOLDER_PATTERN))
    quota_bytes: int | None = Field(default=None, le=_MOST_BYTES, json_schema_extra=_QUOTA)


class QuotaRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    quota_bytes: int | None = Field(le=_MOST_BYTES, description="null for any amount", json_schema_extra=_QUOTA)


class UnshareRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    grantee: str = Field(
        max_length=255, description="a user, or @ and a project", json_schema_extra=matches(GRANTEE_PATTERN)
    )


class ShareRequest(UnshareRequest):
    read_only: bool = True


class MoveRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    to: str = Field(max_length=4096, pattern=_TEXT, description="the new path in the folder")


_Names = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=255, pattern=_TEXT)]], Field(default=[], max_length=1000)
]


class ReserveRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    begin: str = Field(default="now", max_length=100, description="2026-11-22T08:00, 08:00 or +2h")
    end: str = Field(max_length=100, description="likewise; +2h counts from the begin")
    agents: _Names
    resource_group: str | None = Field(default=None, min_length=1, max_length=255, description="instead of agents")
    users: _Names
    projects: _Names
    reason: str = Field(default="", max_length=1000, pattern=_TEXT, description="shown with the reservation")


# Strictly: true is no amount.
_Amount = Annotated[int | None, Field(strict=True, ge=0, le=MOST_AMOUNT)]


class AmountsRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sessions: _Amount = None
    kernels: _Amount = None
    cpu: _Amount = Field(default=None, description="in thousandths of a core")
    mem: _Amount = Field(default=None, description="in bytes")
    fgpu: _Amount = Field(default=None, description="in thousandths of a unit")
    gpu: _Amount = Field(default=None, description="whole devices")


class LimitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    running: AmountsRequest = Field(default=AmountsRequest(), description="what is left out, or null, is not limited")
    pending: AmountsRequest = Field(default=AmountsRequest(), description="likewise")

    def limit(self) -> Limit:
        return Limit(self.running.model_dump(exclude_none=True), self.pending.model_dump(exclude_none=True))


class WeightRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    weight: float = Field(strict=True, ge=LEAST_WEIGHT, le=MOST_WEIGHT, description="1 for users who are not named")


class TokenRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scope: Scope = Field(default=Scope.USER, description="no wider than the caller's own")
    expires: str | None = Field(
        default=None, max_length=100, description="a time such as 30d; when the caller's own token does, by default"
    )
    projects: list[Annotated[str, Field(min_length=1, max_length=255, pattern=_TEXT)]] = Field(
        default=[], max_length=100, description="it submits to these projects only"
    )


class SecretRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: SecretStr = Field(
        description="text of at most 64 KiB",
        json_schema_extra={"minLength": 1, "maxLength": MAX_SECRET_BYTES, "pattern": _TEXT},
    )


class CommitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        max_length=MAX_NAME,
        description="name and tag of the new image, such as ann/train:2",
        json_schema_extra=matches(NAME_PATTERN, TAG_PATTERN, between=":"),
    )
    kernel: str | None = Field(default=None, max_length=255, description="such as sub1; main1 by default")
    message: str = Field(default="", max_length=1000, description="a line for the catalog")
    public: bool = Field(default=False, description="all users may use it")

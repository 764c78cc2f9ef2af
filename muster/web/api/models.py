"""What the API alone has: bodies of requests, and answers about the server itself."""

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from muster.service.view import View


class DrainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=1000, description="shown to users whose sessions wait because of it")


class References(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sessions: list[str] = Field(max_length=10_000, description="names, ids, or starts of ids")


class VersionView(View):
    muster: str
    api: str


class Health(View):
    status: str


class RenameRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str


_TEXT = r"^[^\x00]*$"
_MOST_BYTES = 1 << 60


class FolderRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=255)
    quota_bytes: int | None = Field(default=None, ge=0, le=_MOST_BYTES)


class QuotaRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    quota_bytes: int | None = Field(ge=0, le=_MOST_BYTES, description="null for any amount")


class UnshareRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    grantee: str = Field(max_length=255, pattern=_TEXT, description="a user, or @ and a project")


class ShareRequest(UnshareRequest):
    read_only: bool = True


class SecretRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: SecretStr = Field(description="text of at most 64 KiB")


class CommitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=400, description="NAME:TAG of the new image")
    kernel: str | None = Field(default=None, max_length=255, description="such as sub1; main1 by default")
    message: str = Field(default="", max_length=1000, description="a line for the catalog")
    public: bool = Field(default=False, description="all users may use it")

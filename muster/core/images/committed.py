"""Images made of running sessions."""

import re
from dataclasses import dataclass

from muster.core.images.catalog import ImageVersion

NAME_PATTERN = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*")
TAG_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class CommittedImage:
    """An image made of a running session. `name:tag` is both its word in the catalog and its tag on the agents.

    `parent` is the image that the kernel ran, `agent_id` where it was made. `created_at` is in seconds since the epoch.
    Until it is made, `image_id` is empty and `size_bytes` 0.
    """

    name: str
    tag: str
    owner: str
    public: bool
    message: str
    parent: str
    parent_id: str
    session_id: str
    session_name: str
    kernel_name: str
    agent_id: str
    architecture: str
    created_at: float
    image_id: str = ""
    size_bytes: int = 0

    @property
    def reference(self) -> str:
        return f"{self.name}:{self.tag}"

    @property
    def is_made(self) -> bool:
        return bool(self.image_id)

    @property
    def version(self) -> ImageVersion:
        """Return the image as a version of the catalog: for its owner, or for everyone."""
        return ImageVersion(
            name=self.name,
            version=self.tag,
            reference=self.reference,
            words=(self.reference,),
            is_default=False,
            description=self.message,
            architecture=self.architecture,
            users=() if self.public else (self.owner,),
        )


def parse_name(text: str) -> tuple[str, str]:
    """Return the name and the tag of `NAME:TAG`. Raises ValueError; its message says what to write instead."""
    name, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        raise ValueError(f"{text!r} has no tag; write a name and a tag, such as train:2")
    if not NAME_PATTERN.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(f"{name!r} is not a name; write lower-case letters, digits and ._-/ such as lab/train")
    if not TAG_PATTERN.fullmatch(tag):
        raise ValueError(f"{tag!r} is not a tag; write letters, digits and _.- such as v2")
    return name, tag

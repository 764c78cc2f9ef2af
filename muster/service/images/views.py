"""Views of the catalog's images, and of images that are made of running kernels."""

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import Field

from muster.core.images.collection import PulledImage
from muster.core.images.committed import CommittedImage
from muster.core.values.slots import Slots
from muster.service.images.commits_under_way import CommitState
from muster.service.images.known import KnownImage
from muster.service.view import Moment, View


class CommittedFromView(View):
    id: str
    name: str
    kernel: str


class CommittedImageView(View):
    """The record of an image that was made of a running kernel."""

    reference: str
    image_id: str
    author: str
    public: bool
    message: str
    parent: str
    parent_id: str
    session: CommittedFromView
    agent: str
    architecture: str
    size_bytes: int
    created_at: Moment

    @classmethod
    def of(cls, image: CommittedImage) -> Self:
        return cls(
            reference=image.reference,
            image_id=image.image_id,
            author=image.owner,
            public=image.public,
            message=image.message,
            parent=image.parent,
            parent_id=image.parent_id,
            session=CommittedFromView(id=image.session_id, name=image.session_name, kernel=image.kernel_name),
            agent=image.agent_id,
            architecture=image.architecture,
            size_bytes=image.size_bytes,
            created_at=image.created_at,
        )


class MinimumView(View):
    """The least that a session's kernels must ask for."""

    cpu_milli: int
    mem_bytes: int
    gpu: int
    fgpu_milli: int

    @property
    def slots(self) -> Slots:
        return Slots(cpu=self.cpu_milli, mem=self.mem_bytes, fgpu=self.fgpu_milli, gpu=self.gpu)


class ImageView(View):
    """A version of an image, as `muster images --json` prints it."""

    name: str
    version: str
    reference: str
    aliases: list[str]
    is_default_version: bool
    description: str
    labels: dict[str, str]
    architecture: str | None = Field(description="null for any")
    minimum: MinimumView
    users: list[str]
    projects: list[str]
    default: bool = Field(description="whether it is the site's default image")
    agents: list[str]
    image_ids: list[str] = Field(description="one for each image that agents hold under the name")
    image_id_by_agent: dict[str, str]
    size_bytes: int | None = Field(description="null where no agent holds it")
    committed: CommittedImageView | None

    @classmethod
    def of(cls, image: KnownImage) -> Self:
        version, least = image.version, image.version.least
        return cls(
            name=version.name,
            version=version.version,
            reference=version.reference,
            aliases=list(version.aliases),
            is_default_version=version.is_default,
            description=version.description,
            labels=dict(version.labels),
            architecture=version.architecture or None,
            minimum=MinimumView(cpu_milli=least.cpu, mem_bytes=least.mem, gpu=least.gpu, fgpu_milli=least.fgpu),
            users=list(version.users),
            projects=list(version.projects),
            default=image.is_site_default,
            agents=list(image.held_by),
            image_ids=list(image.image_ids),
            image_id_by_agent=dict(image.held_by),
            size_bytes=image.size_bytes,
            committed=CommittedImageView.of(image.committed) if image.committed else None,
        )


class RemovedImageView(View):
    """An image that Muster had pulled to an agent, and removed there since nobody needed it."""

    agent: str
    reference: str
    removed_at: Moment


class ImageRemovedView(View):
    """The agents from which an image that was made of a session was removed."""

    reference: str
    removed_from: list[str]
    failed: dict[str, str] = Field(
        description="by agent, why it could not remove the image, which stays in the catalog until all have"
    )


class ImagesView(View):
    items: list[ImageView]
    agent_count: int = Field(description="all agents, whether or not they have one of the images")
    removed: list[RemovedImageView] = Field(
        default=[], description="removed from agents whose disks were short in the last 30 days; for administrators"
    )

    @classmethod
    def of(cls, images: Iterable[KnownImage], agent_count: int, pulled: Iterable[PulledImage] = ()) -> Self:
        removed = [
            RemovedImageView(agent=image.agent_id, reference=image.reference, removed_at=image.removed_at)
            for image in pulled
            if image.removed_at is not None
        ]
        return cls(items=[ImageView.of(image) for image in images], agent_count=agent_count, removed=removed)


class CommitView(View):
    """The progress of making an image of a kernel."""

    reference: str
    state: Literal["making", "made", "failed"]
    done_bytes: int
    total_bytes: int = Field(description="0 until it is known")
    problem: str | None
    image: CommittedImageView | None

    @classmethod
    def of(cls, commit: CommitState) -> Self:
        return cls(
            reference=commit.reference,
            state=commit.state,
            done_bytes=commit.done_bytes,
            total_bytes=commit.total_bytes,
            problem=commit.problem,
            image=CommittedImageView.of(commit.image) if commit.image else None,
        )

"""A running kernel into an image of the catalog."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from muster.core.agents.agent import Agent
from muster.core.images.committed import CommittedImage, parse_name
from muster.core.images.names import familiar
from muster.core.model.session import Kernel, Session, SessionState, kernel_named
from muster.core.values.errors import BadInputError, ImageError, MusterError, NameTakenError, NotPossibleInStateError
from muster.engine.commit import CommittedAs, commit, parent_id, remove
from muster.service.images.catalog import load_catalog
from muster.service.images.claims import Claim
from muster.service.reach.logs import agent_of
from muster.service.wake import AGENTS, wake
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: which kernel becomes which image, and whose. `message` is one line for the catalog.

    With `replaces_leftover` the agent has an image of that name, which an interrupted commit left there.
    """

    image: CommittedImage
    agent: Agent
    kernel: Kernel
    replaces_leftover: bool = False


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A user's request for a commit: `name` is NAME:TAG, `kernel` main1 by default, `message` a line."""

    kernel: str | None
    name: str
    message: str = ""
    public: bool = False

    def checked(self) -> tuple[str, str]:
        """Return the image's name and its tag. Raises BadInputError for what they or the message cannot be."""
        if not self.message.isprintable():
            raise BadInputError("--message: it holds a line break or a control character; write one line")
        try:
            return parse_name(self.name)
        except ValueError as error:
            raise BadInputError(f"NAME:TAG: {error}") from None


def planned_commit(
    store: Store, settings: Settings, session: Session, request: CommitRequest, by: str, *, of_anybody: bool = False
) -> Commit:
    """Plan a commit; with `of_anybody` of any user's session and under any name, as administrators may.

    Raises BadInputError for a name that is none, is taken or is not the user's, and NotPossibleInStateError for a
    session that has no containers, or is another's.
    """
    repository, tag = request.checked()
    kernel = kernel_named(session, request.kernel)
    if by != session.owner and not of_anybody:
        raise NotPossibleInStateError(f"session {session.name} is {session.owner}'s; only its owner can commit it")
    if session.state is not SessionState.RUNNING:
        raise NotPossibleInStateError(f"session {session.name} is {session.state}; only a RUNNING one can be committed")
    agent = agent_of(store.agents.all(), session, kernel)
    _check_unmistakable(repository, tag)
    if settings.foreign_images and not of_anybody:
        _check_own(repository, by)
    replaces_leftover = _check_free(store, settings, f"{repository}:{tag}", agent)
    image = CommittedImage(
        name=repository,
        tag=tag,
        owner=by,
        public=request.public,
        message=" ".join(request.message.split()),
        parent=kernel.image,
        parent_id=parent_id(agent, kernel),
        session_id=session.id,
        session_name=session.name,
        kernel_name=kernel.name,
        agent_id=agent.id,
        architecture=agent.report.architecture,
        created_at=time.time(),
    )
    return Commit(image, agent, kernel, replaces_leftover)


def committed(
    store: Store, settings: Settings, planned: Commit, progressed: Callable[[int, int], None]
) -> CommittedImage:
    """Return the image once it is on its agent and in the catalog. Raises NameTakenError, and as `made_of_claim`."""
    return made_of_claim(store, settings, planned, Claim(store.images, planned.image), progressed)


def made_of_claim(
    store: Store, settings: Settings, planned: Commit, claim: Claim, progressed: Callable[[int, int], None]
) -> CommittedImage:
    """Return the image whose name is claimed already; if it cannot be made, the name is free again.

    Raises as `engine.commit`, and ImageError where the claim was lost meanwhile.
    """
    images, image = store.images, planned.image
    try:
        if planned.replaces_leftover:
            with suppress(ImageError):  # it is in use, and only loses its name
                remove(planned.agent, image.reference)
        made = commit(
            planned.agent,
            planned.kernel,
            CommittedAs(image.reference, image.owner, image.message, image.created_at),
            settings.commit_max_size,
            settings.state_dir,
            progressed,
        )
    except BaseException:  # Ctrl-C: the name is free again
        claim.give_up()
        raise
    finally:
        claim.let_go()
    image = replace(image, image_id=made.image_id, size_bytes=made.size_bytes)
    if not images.made(image):
        # No catalog has it: nobody could remove it from there.
        with suppress(MusterError):
            remove(planned.agent, made.image_id)
        problem = "it was removed while it was made, or its name was taken over; commit it again"
        raise ImageError(f"image {image.reference}: {problem}", permanent=False)
    wake(settings, store, AGENTS)
    return image


def _check_unmistakable(repository: str, tag: str) -> None:
    """Check that the engine calls the image by this name: else who writes the engine's would mean it too."""
    reference = f"{repository}:{tag}"
    if familiar(reference) != reference:
        raise BadInputError(f"NAME:TAG: the engine calls {reference} {familiar(reference)}; choose another name")


def _check_own(repository: str, user: str) -> None:
    """Check that others cannot mean a registry's image by a user's name: they would run this one instead."""
    own, slash, _ = repository.partition("/")
    if not slash or own != user:
        better = f"{user}/{repository.rpartition('/')[2]}"
        raise BadInputError(f"NAME:TAG: others may mean a registry's image by {repository}; write {better}")


def _check_free(store: Store, settings: Settings, reference: str, agent: Agent) -> bool:
    """Check that no other image has the name; return whether the agent has what an interrupted commit left of it."""
    listed = load_catalog(settings.catalog).versions
    if any(reference in {*version.words, version.reference} for version in listed):
        raise NameTakenError(f"NAME:TAG: the catalog has an image {reference}; choose another name or tag")
    name, tag = reference.rsplit(":", 1)
    known = store.images.find(name, tag)
    if known and not store.images.is_abandoned(name, tag, time.time()):
        raise NameTakenError(
            f"NAME:TAG: there is an image {reference} already, or it is being made;"
            f" choose another tag, or `muster images rm {reference}`"
        )
    holding = sorted(other.id for other in store.agents.all() if reference in other.images)
    if known and holding == [known.agent_id] == [agent.id]:
        return True
    if known and holding == [known.agent_id]:
        raise NameTakenError(
            f"NAME:TAG: agent {holding[0]} holds what an interrupted commit left of {reference};"
            f" choose another tag, or `muster images rm {reference}`"
        )
    if holding:
        raise NameTakenError(f"NAME:TAG: agent {holding[0]} holds another image {reference}; choose another tag")
    return False

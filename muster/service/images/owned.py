"""The image catalog as a token's user sees it, and what they add to it: images of running kernels."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster.core.model.session import Session
from muster.core.model.token import Token
from muster.core.values.errors import NotFoundError
from muster.service.at_once import AtOnce
from muster.service.identity.permissions import check_may_change
from muster.service.images.claims import Claim
from muster.service.images.commits_under_way import CommitState, CommitsUnderWay, Progressed
from muster.service.images.known import KnownImage, known_images, named_images
from muster.service.images.views import CommittedImageView, CommitView, ImageRemovedView, ImagesView
from muster.settings import Settings
from muster.store.store import Store

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.images.commits import Commit

# Each asks all agents that have the image, one after the other.
_REMOVALS = AtOnce(16, 4, ("images", "are removed"))
_INTERRUPTED = "it was interrupted; commit it again"


class OwnedImages:
    """The catalog of a token's user.

    `find` returns a session that they may see, or raises NotFoundError; `sees` tells whether they may see one.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        commits: CommitsUnderWay,
        token: Token,
        find: Callable[[str], Session],
        sees: Callable[[Session], bool],
    ) -> None:
        self._store = store
        self._settings = settings
        self._commits = commits
        self._token = token
        self._find = find
        self._sees = sees

    def all(self) -> ImagesView:
        """Return the catalog as the user may see it."""
        pulled = self._store.pulled_images.all() if self._token.sees_all else ()
        return ImagesView.of(self._known(), len(self._store.agents.all()), pulled)

    def named(self, name: str) -> ImagesView:
        """Return all versions of NAME, or that of NAME:VERSION, an alias, or a reference. Raises NotFoundError."""
        return ImagesView.of(named_images(self._known(), name), len(self._store.agents.all()))

    def commit(
        self,
        reference: str,
        kernel: str | None,
        name: str,
        *,
        message: str = "",
        public: bool = False,
        progressed: Progressed | None = None,
    ) -> CommittedImageView:
        """Make an image NAME:TAG of a running kernel (main1 for None) and return it; this may take minutes.

        `begin_commit` does not wait for that. Raises as `begin_commit`, ImageError and AgentUnreachableError.
        """
        from muster.service.images.commits import committed  # noqa: PLC0415 - the Docker SDK loads slowly

        planned = self._planned_commit(reference, kernel, name, message=message, public=public)
        image = committed(self._store, self._settings, planned, progressed or (lambda _done, _total: None))
        return CommittedImageView.of(image)

    def begin_commit(
        self, reference: str, kernel: str | None, name: str, *, message: str = "", public: bool = False
    ) -> CommitView:
        """Make the same in the background: `commit_state` says how far it has come.

        Raises ScopeError, NotFoundError, BadInputError and NameTakenError for the name, and NotPossibleInStateError for
        a session that does not run.
        """
        from muster.service.images.commits import made_of_claim  # noqa: PLC0415 - the Docker SDK loads slowly

        planned = self._planned_commit(reference, kernel, name, message=message, public=public)
        claim = Claim(self._store.images, planned.image)
        begun = self._commits.begin(
            planned.image,
            lambda progressed: made_of_claim(self._store, self._settings, planned, claim, progressed),
            claim.give_up,
        )
        return CommitView.of(begun)

    def commit_state(self, name: str) -> CommitView:
        """Return the build state of NAME:TAG. Raises NotFoundError if the user never built it or has removed it."""
        known = self._commits.find(name)
        repository, _, tag = name.rpartition(":")
        image = self._store.images.find(repository, tag)
        if image is not None and image.is_made:
            known = CommitState(name, image.owner, image=image)
        elif image is not None and (known is None or known.state != "making"):
            # Another process is making it, or was.
            abandoned = self._store.images.is_abandoned(repository, tag, time.time())
            known = CommitState(name, image.owner, problem=_INTERRUPTED if abandoned else None)
        elif image is None and known is not None and known.state == "made":
            known = None
        if known is None or self._token.owner_filter not in {None, known.owner}:
            raise NotFoundError(f"no image {name!r} is being made, or was; see `muster images`")
        return CommitView.of(known)

    def remove(self, reference: str) -> ImageRemovedView:
        """Remove an image NAME:TAG that was made of a session, as `removal.remove_image`, and raise as that.

        Raises NotPossibleInStateError also where too many images are being removed.
        """
        from muster.service.images.removal import remove_image  # noqa: PLC0415 - the Docker SDK loads slowly

        with _REMOVALS.counted(self._token.user):
            removed = remove_image(self._store, self._settings, reference, self._token, self._sees)
        return ImageRemovedView(reference=reference, removed_from=removed.agent_ids, failed=removed.failures)

    def _known(self) -> Sequence[KnownImage]:
        return known_images(self._store, self._settings, self._token.user, sees_all=self._token.sees_all)

    def _planned_commit(self, reference: str, kernel: str | None, name: str, *, message: str, public: bool) -> "Commit":
        from muster.service.images.commits import CommitRequest, planned_commit  # noqa: PLC0415 - the Docker SDK loads slowly

        check_may_change(self._token)
        session = self._find(reference)
        request = CommitRequest(kernel, name, message, public)
        return planned_commit(
            self._store, self._settings, session, request, self._token.user, of_anybody=self._token.sees_all
        )

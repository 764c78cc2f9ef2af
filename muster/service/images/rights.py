"""Who may still run which image when a session is launched: the catalog may have changed since it was queued."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from muster.core.images.choice import Choosing
from muster.core.model.session import Session
from muster.core.values.errors import SettingsError, SpecError
from muster.service.images.catalog import load_catalog
from muster.store.store import Store


class ImageRights:
    """The rights of owners to images, as the catalog has them now."""

    def __init__(self, store: Store, catalog: Path) -> None:
        self._store = store
        self._catalog = catalog

    def refusals(self, sessions: Sequence[Session]) -> dict[str, str]:
        """Return by session id why the catalog keeps an image of it from its owner; of its file as far as it is read.

        A name that was free when a session was queued may be a private image's since.
        """
        if not sessions:
            return {}
        try:
            versions = load_catalog(self._catalog).versions
        except SettingsError:
            versions = ()
        versions = (*versions, *(image.version for image in self._store.images.all()))

        # A thousand sessions of an array are of one owner and one image.
        @cache
        def refusal(owner: str, project: str, references: frozenset[str]) -> str | None:
            choosing = Choosing(versions, owner, project)
            try:
                for reference in sorted(references):
                    choosing.check_reference(reference)
            except SpecError as error:
                return str(error)
            return None

        found = {
            session.id: refusal(session.owner, session.spec.project, frozenset(k.image for k in session.kernels))
            for session in sessions
        }
        return {session_id: reason for session_id, reason in found.items() if reason is not None}

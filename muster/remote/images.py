"""The image catalog by a server's API."""

import time
from urllib.parse import quote

from muster.core.values.errors import MusterError
from muster.remote.client import Client, session_path
from muster.remote.reconnection import Reconnection
from muster.service.images.commits_under_way import Progressed
from muster.service.images.views import CommittedImageView, CommitView, ImageRemovedView, ImagesView

_POLL_S = 0.5


class RemoteImages:
    """The remote twin of `OwnedImages`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reconnection = Reconnection(client)

    def all(self) -> ImagesView:
        return self._client.get(ImagesView, "images")

    def named(self, name: str) -> ImagesView:
        return self._client.get(ImagesView, f"images/{quote(name, safe='')}")

    def remove(self, reference: str) -> ImageRemovedView:
        return self._client.delete(ImageRemovedView, f"images/{quote(reference, safe='')}")

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
        """Raises as `OwnedImages.commit`; MusterError for what goes wrong once it has begun."""
        request = {"kernel": kernel, "name": name, "message": message, "public": public}
        state = self._client.post(CommitView, f"{session_path(reference)}/commit", request)
        while state.image is None:
            if state.problem is not None:
                raise MusterError(state.problem)
            if progressed is not None:
                progressed(state.done_bytes, state.total_bytes)
            time.sleep(_POLL_S)
            state = self._reconnection.get(CommitView, f"commits/{quote(name, safe='')}")
        return state.image

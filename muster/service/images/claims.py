"""The name of an image that is being made, kept for as long as its maker lives."""

import threading
import time
from contextlib import suppress

from muster.core.images.committed import CommittedImage
from muster.core.values.errors import MusterError
from muster.store.images import CommittedImages

_TOUCHED_EVERY_S = 60.0


class Claim:
    """A claim on an image's name. A thread touches it until it is `let_go`.

    Another process may take over one that was not touched for long.
    """

    def __init__(self, images: CommittedImages, image: CommittedImage, every_s: float = _TOUCHED_EVERY_S) -> None:
        """Raises NameTakenError."""
        images.claim(image)
        self._images = images
        self._image = image
        self._every_s = every_s
        self._over = threading.Event()
        threading.Thread(target=self._touch, name="claim", daemon=True).start()

    def let_go(self) -> None:
        """Stop touching it: it is made."""
        self._over.set()

    def give_up(self) -> None:
        """Let others have the name: the image is not made. Raises StoreUnavailableError."""
        self._over.set()
        self._images.give_up(self._image)

    def _touch(self) -> None:
        while not self._over.wait(self._every_s):
            with suppress(MusterError):  # the database is away: there is time until others may take the name
                self._images.touch(self._image, time.time())

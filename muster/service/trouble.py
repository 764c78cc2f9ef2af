"""A trouble that lasts is one event: one line when it begins, one when it is over."""

import logging
import time

_AGAIN_S = 600.0


class Trouble:
    """A logger of one trouble at a time: once, and again every ten minutes. Another text is another trouble."""

    def __init__(self, log: logging.Logger, level: int = logging.ERROR) -> None:
        self._log = log
        self._level = level
        self._text: str | None = None
        self._logged_at = 0.0

    @property
    def is_on(self) -> bool:
        return self._text is not None

    def note(self, text: str) -> None:
        """Say that there is this trouble."""
        if text != self._text or time.monotonic() - self._logged_at >= _AGAIN_S:
            self._log.log(self._level, "%s", text)
            self._text, self._logged_at = text, time.monotonic()

    def over(self, text: str) -> None:
        """Say that there is none, with this text if there was one."""
        if self._text is not None:
            self._log.info("%s", text)
            self._text = None

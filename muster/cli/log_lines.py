"""The lines that `muster daemon` and `muster web` log to standard error: one an event, in UTC, as text or as JSON."""

import json
import logging
import sys
import threading
from datetime import UTC, datetime

from muster.settings import LogFormat


def log_to_stderr(form: LogFormat) -> None:
    """Log in this form from now on, what threads die of included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form is LogFormat.JSON else _TextLines())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    threading.excepthook = _log_death


class _TextLines(logging.Formatter):
    """A form such as `2026-11-22T22:41:03.123Z INFO muster.queue: session train: PENDING: submitted`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: {_printable(record.getMessage())}"
        return "\n".join([line, *_traceback(self, record)])


class _JsonLines(logging.Formatter):
    """An object a line, with the event's own fields beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        traceback = _traceback(self, record)
        return json.dumps(
            {
                "at": _time(record),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
                **getattr(record, "fields", {}),
                **({"traceback": "\n".join(traceback)} if traceback else {}),
            }
        )


def _time(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03}Z"


def _printable(text: str) -> str:
    """Return the text without what would begin a line of its own, or steer a terminal: it may be a tenant's."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    return formatter.formatException(record.exc_info).splitlines() if record.exc_info else []


def _log_death(died: threading.ExceptHookArgs) -> None:
    name = died.thread.name if died.thread else "?"
    exception = died.exc_value or died.exc_type()
    cause = (type(exception), exception, died.exc_traceback)
    logging.getLogger("muster").error("thread %s has died", name, exc_info=cause)

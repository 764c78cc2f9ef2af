"""Writes that are settled: where the answer to a COMMIT is lost, they find out by themselves what has become of it."""

import time
from collections.abc import Callable

from muster.core.values.errors import OutcomeUnknownError, StoreUnavailableError

# A server that has crashed or hands over to its replica is back by then, mostly.
_PATIENCE_S = 10.0
_RETRY_S = 0.2


def settled(write: Callable[[bool], None]) -> None:
    """Carry out a write until it is known to be done, for some seconds.

    `write` gets whether an earlier try may have been committed; then it does nothing where it finds that it was.
    Raises what `write` raises, and OutcomeUnknownError where the database stays away.
    """
    unknown: OutcomeUnknownError | None = None
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            write(unknown is not None)
        except OutcomeUnknownError as error:
            unknown = error
        except StoreUnavailableError:
            if unknown is None:
                raise
        else:
            return
        if time.monotonic() > give_up_at:
            raise unknown
        time.sleep(_RETRY_S)

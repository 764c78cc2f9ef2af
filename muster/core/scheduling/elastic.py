"""How many kernels an elastic session gets."""

from muster.core.model.session import Session
from muster.core.scheduling.placement import Gang, PlacementState, gang_of_size


def largest_gang(
    state: PlacementState, session: Session, closed: frozenset[str], fits: int, most: int, *, overlay: bool
) -> Gang | None:
    """Return the largest of the session's gangs that fits, of up to `most` kernels; None if no more than `fits` do."""
    largest = None
    middle = most
    while fits < most:
        gang = gang_of_size(session, middle, overlay)
        if state.fits(gang, closed):
            largest, fits = gang, middle
        else:
            most = middle - 1
        middle = (fits + most + 1) // 2
    return largest

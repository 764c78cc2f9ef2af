"""What contract tests look at most."""

from muster.core.model.session import Session
from muster.store.store import Store


def only(store: Store, session: Session) -> Session:
    """Return the session as the store has it now."""
    return store.get([session.id])[session.id]

"""Image references as the engine's list shows them."""

_DEFAULT_REGISTRY = "docker.io/"
_DEFAULT_NAMESPACE = "library/"


def familiar(reference: str) -> str:
    """Return the reference without the default registry and namespace, and with a tag.

    `docker.io/library/debian` is `debian:latest`.
    """
    name = reference.removeprefix(_DEFAULT_REGISTRY).removeprefix(_DEFAULT_NAMESPACE)
    if "@" in name or ":" in name.rpartition("/")[2]:
        return name
    return f"{name}:latest"

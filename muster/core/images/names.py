"""Names of images as the engine understands them: many ways to write one name come to the same."""

import re
from dataclasses import dataclass

_DEFAULT_REGISTRY = "docker.io"
_OTHER_NAME_OF_IT = "index.docker.io"
_DEFAULT_NAMESPACE = "library/"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:]+\])"
_REGISTRY = re.compile(rf"{_HOST}(?::[0-9]{{1,5}})?")
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")
_ID = re.compile(r"[0-9a-f]{1,64}")
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512"})
_LONGEST_PATH = 255


@dataclass(frozen=True, slots=True)
class ImageName:
    """A name in full. `tag` and `digest` are empty where none was written."""

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> tuple[str, str]:
        """Return where its images are: hosts have the same name in any case, and with their usual port."""
        host = self.registry.lower()
        return host.removesuffix(":443").removesuffix(":80"), self.path

    @property
    def namespace(self) -> tuple[str, str]:
        """Return what one owner has of a registry; of Docker Hub's images without an owner, each is by itself."""
        host, path = self.repository
        above, slash, _ = path.rpartition("/")
        return (host, path) if host == _DEFAULT_REGISTRY and above + slash == _DEFAULT_NAMESPACE else (host, above)

    @property
    def familiar(self) -> str:
        """Return it as the engine's list shows it; with a digest, the tag means nothing."""
        path = self.path
        if self.registry == _DEFAULT_REGISTRY:
            path = path.removeprefix(_DEFAULT_NAMESPACE) if path.count("/") == 1 else path
        else:
            path = f"{self.registry}/{path}"
        return f"{path}@{self.digest}" if self.digest else f"{path}:{self.tag or 'latest'}"


def parse_image_name(text: str) -> ImageName | None:
    """Return the name, as github.com/distribution/reference reads it; None for an image's id and for other text."""
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        return None
    head, colon, tag = name.rpartition(":")
    if colon and "/" not in tag:
        if not _TAG.fullmatch(tag):
            return None
        name = head
    else:
        tag = ""
    registry, slash, path = name.partition("/")
    if not slash or not ("." in registry or ":" in registry or registry == "localhost" or registry != registry.lower()):
        registry, path = _DEFAULT_REGISTRY, name
    if registry == _OTHER_NAME_OF_IT:
        registry = _DEFAULT_REGISTRY
    if registry == _DEFAULT_REGISTRY and "/" not in path:
        path = _DEFAULT_NAMESPACE + path
    if not _REGISTRY.fullmatch(registry) or not _PATH.fullmatch(path) or len(registry) + len(path) > _LONGEST_PATH:
        return None
    is_id = name in _ALGORITHMS or (len(name) == 64 and _ID.fullmatch(name) and not (tag or digest))
    if not slash and is_id:
        return None
    return ImageName(registry, path, tag, digest)


def familiar(reference: str) -> str:
    """Return the reference without the default registry and namespace, and with a tag.

    `docker.io/library/debian` is `debian:latest`. What is no name stays as it is.
    """
    name = parse_image_name(reference)
    return reference if name is None else name.familiar


def unmistakable(reference: str) -> str:
    """Return the reference such that the engine does not take it for the beginning of an image's id."""
    return familiar(reference) if _ID.fullmatch(reference) else reference

"""The image catalog: the site's file, and what was made of sessions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from muster.contract.report import ImageReport
from muster.core.agents.agent import Agent
from muster.core.images.catalog import Catalog, ImageVersion
from muster.core.images.choice import Choosing, with_images
from muster.core.images.names import familiar
from muster.core.spec.errors import Checked, checked
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SettingsError
from muster.settings import Settings
from muster.store.store import Store
from muster.yaml_text import yaml_content


def load_catalog(path: Path) -> Catalog:
    """Return the catalog; an empty one if there is no such file. Raises SettingsError."""
    try:
        content: Any = yaml_content(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        return Catalog()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"catalog {path} cannot be read: {' '.join(str(error).split())}") from None
    found = _catalog_of(content)
    if found.part is None or found.errors:
        raise SettingsError("\n".join(f"{path}: {item}" for item in found.errors))
    return found.part


def catalog_errors(text: str) -> tuple[FieldError, ...]:
    """Return the errors of a catalog before it is written. Raises yaml.YAMLError."""
    return _catalog_of(yaml_content(text) or {}).errors


def _catalog_of(content: Any) -> Checked[Catalog]:  # noqa: ANN401 - as it is written
    return checked(Catalog, content if isinstance(content, Mapping) else {"images": content})


def whole_catalog(settings: Settings, store: Store) -> tuple[ImageVersion, ...]:
    """Return the file's images, then those that were made of sessions. Raises SettingsError."""
    return (*load_catalog(settings.catalog).versions, *(image.version for image in store.images.all()))


def reference_of(settings: Settings, store: Store, word: str) -> str:
    """Return the reference of a name or an alias, no matter who may use it. Any other word is a reference already."""
    versions = whole_catalog(settings, store)
    return next((version.reference for version in versions if word in version.words), word)


def default_reference(settings: Settings) -> str:
    """Return the reference of the default image, as far as the catalog can be read."""
    try:
        versions = load_catalog(settings.catalog).versions
    except SettingsError:
        versions = ()
    word = settings.default_image
    return next((version.reference for version in versions if word in version.words), word)


def with_catalog_images(spec: SessionSpec, settings: Settings, store: Store, owner: str) -> SessionSpec:
    """Return the spec with references for the catalog's words. Raises SpecError and SettingsError."""
    held = {tag for agent in store.agents.all() for tag in tags_on(agent.report.images)}
    versions = whole_catalog(settings, store)
    choosing = Choosing(versions, owner, spec.project, held, foreign=settings.foreign_images)
    return with_images(spec, choosing, settings.default_image)


def unknown_images(settings: Settings, store: Store, references: Iterable[str]) -> list[str]:
    """Return those of the references that neither the catalog names nor any agent holds; none without agents."""
    agents = store.agents.all()
    if not agents:
        return []
    named = {familiar(version.reference) for version in whole_catalog(settings, store)}
    named |= {tag for agent in agents for tag in tags_on(agent.report.images)}
    return [reference for reference in dict.fromkeys(references) if familiar(reference) not in named]


def is_the_sites(settings: Settings, reference: str) -> bool:
    """Return whether the site's file has this reference, or it is the default image. Raises SettingsError."""
    references = [version.reference for version in load_catalog(settings.catalog).versions]
    return familiar(reference) in {familiar(known) for known in (*references, settings.default_image)}


def tags_on(images: Iterable[ImageReport]) -> set[str]:
    return {tag for image in images for tag in image.tags}


def holders(agents: Collection[Agent], reference: str) -> dict[str, str]:
    """Return by agent id the id of the image that has this reference there, as last observed."""
    name = familiar(reference)
    return {agent.id: image.id for agent in agents for image in agent.report.images if name in image.tags}


def size_on(agents: Sequence[Agent], image_ids: set[str]) -> int | None:
    """Return the bytes of the largest of these images, as agents report it; None if none does."""
    sizes = [image.size_bytes for agent in agents for image in agent.report.images if image.id in image_ids]
    return max(sizes, default=None)

"""The image catalog: names and aliases for image references."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from muster.core.errors import SettingsError, SpecError
from muster.core.spec_errors import validated


class CatalogImage(BaseModel):
    """One entry of the catalog."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    reference: str
    description: str = ""
    aliases: tuple[str, ...] = ()


class Catalog(BaseModel):
    """What `/etc/muster/images.yml` holds: `images`, a list of entries."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    images: tuple[CatalogImage, ...] = Field(default=())

    def reference_of(self, image: str) -> str:
        """The reference behind a name or an alias; anything else is taken for a reference."""
        for entry in self.images:
            if image == entry.name or image in entry.aliases:
                return entry.reference
        return image


def load_catalog(path: Path) -> Catalog:
    """An empty one when there is no such file. Raises SettingsError."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        return Catalog()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"catalog {path} cannot be read: {' '.join(str(error).split())}") from None
    try:
        return validated(Catalog, content if isinstance(content, dict) else {"images": content})
    except SpecError as error:
        raise SettingsError("\n".join(f"{path}: {item}" for item in error.errors)) from None


def tags_on(report_images: Sequence[dict[str, Any]]) -> set[str]:
    return {tag for image in report_images for tag in image["tags"]}

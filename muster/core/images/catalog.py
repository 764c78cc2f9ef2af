"""The image catalog as values: entries with versions, and what each requires of a session."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from muster.core.images.names import familiar
from muster.core.spec.values import Bytes, Milli, invalid
from muster.core.values.architecture import architecture_of
from muster.core.values.errors import FieldError
from muster.core.values.slots import Slots, format_slot

UNVERSIONED = "latest"
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")
_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _architecture(value: object) -> object:
    return architecture_of(value) if isinstance(value, str) else value


def _aliases(value: object) -> object:
    """Return a version for each alias. A list stands for the default version; a mapping names a version for each."""
    if isinstance(value, list | tuple):
        return {str(alias): None for alias in value}
    if not isinstance(value, Mapping):
        return value
    return {str(alias): version if version is None else str(version) for alias, version in value.items()}


def _version(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _versions(value: object) -> object:
    """Return the versions with texts as names. YAML makes numbers of versions such as 1.7."""
    return {str(version): reference for version, reference in value.items()} if isinstance(value, Mapping) else value


class Least(BaseModel):
    """The least that a kernel of an image must have. `fgpu` is also met by a whole GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu: Milli = 0
    mem: Bytes = 0
    gpu: int = Field(default=0, ge=0)
    fgpu: Milli = 0

    @property
    def slots(self) -> Slots:
        return Slots(cpu=self.cpu, mem=self.mem, gpu=self.gpu, fgpu=self.fgpu)


class CatalogImage(BaseModel):
    """An entry of the catalog: a name, and a reference or several versions of one.

    The Ansible roles that make an image have keys of their own in an entry; the catalog ignores them.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    reference: str = ""
    versions: Annotated[dict[str, str], BeforeValidator(_versions)] = Field(default_factory=dict)
    default: Annotated[str, BeforeValidator(_version)] = ""
    aliases: Annotated[dict[str, str | None], BeforeValidator(_aliases)] = Field(default_factory=dict)
    description: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    architecture: Annotated[str, BeforeValidator(_architecture)] = ""
    least: Least = Field(default=Least(), alias="minimum")
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not _NAME.fullmatch(self.name):
            raise invalid(f"{self.name!r} is not a name of an image", "write letters, digits and _./-")
        if bool(self.reference) == bool(self.versions):
            problem = "both reference and versions are" if self.versions else "neither reference nor versions is"
            raise invalid(f"{self.name}: {problem} given", "give the one reference, or versions as {1.7: REFERENCE}")
        for version in self.versions:
            if not _VERSION.fullmatch(version):
                raise invalid(f"{self.name}: {version!r} is not a version", "write letters, digits and _.-")
        if self.default and self.default not in self.versions:
            raise invalid(f"{self.name}: default {self.default!r} is no version of it", "name one of its versions")
        for alias, named in self.aliases.items():
            if not _WORD.fullmatch(alias):
                raise invalid(f"{self.name}: {alias!r} is not an alias", "write letters, digits and _./- or NAME:TAG")
            if named is not None and named not in self.versions:
                raise invalid(f"{self.name}: alias {alias} names {named!r}, no version of it", "name one of them")
        return self


class ImageVersion(BaseModel):
    """An image that a session may pick. `words` are all its names, the plainest first.

    `users` and `projects` may use it; everyone where both are empty.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    version: str
    reference: str
    words: tuple[str, ...]
    is_default: bool = True
    description: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    architecture: str = ""
    least: Slots = Slots()
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()

    def may_be_used_by(self, user: str, project: str) -> bool:
        return not (self.users or self.projects) or user in self.users or project in self.projects

    def visible_to(self, user: str, has_project: Callable[[str], bool]) -> bool:
        """Return whether the user may see the version; `has_project` says which projects they may name."""
        return not (self.users or self.projects) or user in self.users or any(map(has_project, self.projects))

    @property
    def aliases(self) -> tuple[str, ...]:
        own = {self.name, f"{self.name}:{self.version}"}
        return tuple(word for word in self.words if word not in own)


def versions_of(entry: CatalogImage) -> tuple[ImageVersion, ...]:
    """Return the entry's versions in the order of the catalog. The first one is the default where none is named."""
    references = entry.versions or {UNVERSIONED: entry.reference}
    default = entry.default or next(iter(references))
    return tuple(
        ImageVersion(
            name=entry.name,
            version=version,
            reference=reference,
            words=tuple(_words(entry, version, is_default=version == default)),
            is_default=version == default,
            description=entry.description,
            labels=entry.labels,
            architecture=entry.architecture,
            least=entry.least.slots,
            users=entry.users,
            projects=entry.projects,
        )
        for version, reference in references.items()
    )


def _words(entry: CatalogImage, version: str, *, is_default: bool) -> list[str]:
    plain = [entry.name, *(alias for alias, named in entry.aliases.items() if named is None)]
    words = [word for word in plain if is_default]
    words += [f"{word}:{version}" for word in plain if ":" not in word and entry.versions]
    return words + [alias for alias, named in entry.aliases.items() if named == version]


class Catalog(BaseModel):
    """The content of the catalog's file: `images`, a list of entries."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    images: tuple[CatalogImage, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        words = Counter(word for version in self._written for word in version.words)
        for word, count in words.items():
            if count > 1:
                raise invalid(f"{word} stands for {count} images", "give each a name or an alias of its own")
        return self

    @property
    def versions(self) -> tuple[ImageVersion, ...]:
        """Return all versions. That of an entry without any is NAME:latest too, where nothing else is called so."""
        written = self._written
        taken = {word for version in written for word in (*version.words, familiar(version.reference))}
        return tuple(
            version
            if (whole := f"{version.name}:{version.version}") in taken
            else version.model_copy(update={"words": (*version.words, whole)})
            for version in written
        )

    @property
    def _written(self) -> tuple[ImageVersion, ...]:
        """Return the versions with the words that the file gives them."""
        return tuple(version for entry in self.images for version in versions_of(entry))


def shortages(version: ImageVersion, request: Slots) -> list[FieldError]:
    """Return the slots of which a kernel of that image has too little, by the spec's fields."""
    errors = []
    for field in ("cpu", "mem", "gpu", "fgpu"):
        least, has = getattr(version.least, field), getattr(request, field)
        if has >= least or (field == "fgpu" and request.gpu):
            continue
        errors.append(_shortage(version, field, least, has))
    return errors


def _shortage(version: ImageVersion, field: str, least: int, has: int) -> FieldError:
    needed, given = format_slot(field, least), format_slot(field, has)
    problem = f"image {version.words[0]} needs {needed} or more in each container, and {given} is asked for"
    return FieldError(field, problem, f"write {needed} or more")


def as_shown(version: ImageVersion) -> dict[str, Any]:
    """Return the version as JSON: amounts as plain numbers, each in its own unit."""
    least = version.least
    return {
        "name": version.name,
        "version": version.version,
        "reference": version.reference,
        "aliases": list(version.aliases),
        "is_default_version": version.is_default,
        "description": version.description,
        "labels": dict(version.labels),
        "architecture": version.architecture or None,
        "minimum": {
            "cpu_milli": least.cpu,
            "mem_bytes": least.mem,
            "gpu": least.gpu,
            "fgpu_milli": least.fgpu,
        },
        "users": list(version.users),
        "projects": list(version.projects),
    }

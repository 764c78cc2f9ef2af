"""Resolve what users write for an image: an entry by name, alias or reference, or else a registry's reference."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster.core.images.catalog import ImageVersion, shortages
from muster.core.images.names import familiar, parse_image_name, unmistakable
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.architecture import LABEL
from muster.core.values.errors import FieldError, SpecError

_NEAR = 0.75


class Choosing:
    """The images that one user may choose for one project.

    `held` are the tags that agents hold: a name among these is taken to be meant as it is written. With `foreign`, the
    user may name images that the catalog does not have.
    """

    def __init__(
        self,
        versions: Sequence[ImageVersion],
        user: str,
        project: str,
        held: Collection[str] = (),
        *,
        foreign: bool = True,
    ) -> None:
        self._user, self._project = user, project
        self._held = held
        self._foreign = foreign
        self._all = versions
        self._by_word = {word: version for version in reversed(versions) for word in version.words}
        self._named = [(version, name) for version in versions if (name := parse_image_name(version.reference))]
        self._by_reference = {familiar(version.reference): version for version in reversed(versions)}

    def version(self, word: str) -> ImageVersion | None:
        """Return the catalog's version, None for another reference. Raises SpecError where the user may use neither.

        The answer for an image that the user may not use is that for one which is not there.
        """
        for found in (self._by_word.get(word), self._by_reference.get(familiar(word))):
            if found is not None and self._may_use(found):
                return found
        near = self._near(word)
        if self._may_be_foreign(word) and (self._is_meant_so(word) or not near):
            return None
        problem = self._missing(word)
        remedy = "choose one of the catalog, or ask an administrator"
        if near:
            other = f" (for a registry's image, write docker.io/library/{word})" if self._foreign else ""
            remedy = f"did you mean {' or '.join(near)}?{other}"
        raise SpecError([FieldError("image", problem, remedy)])

    def check_reference(self, reference: str) -> None:
        """Check a reference that was chosen earlier. Raises SpecError where the catalog keeps it from the user by now.

        What the catalog does not have any more may still be used.
        """
        same = [version for version in self._all if familiar(version.reference) == familiar(reference)]
        if any(map(self._may_use, same)):
            return
        # An id always names the same image. A name may be that of another by now, which the user may not have.
        is_kept = not self._may_be_foreign(reference) if parse_image_name(reference) else bool(same)
        if is_kept:
            remedy = "submit the session with another, or ask an administrator"
            raise SpecError([FieldError("image", self._missing(reference), remedy)])

    def _missing(self, word: str) -> str:
        return f"there is no image {word!r} in the catalog for {self._user} in project {self._project}"

    def _may_use(self, version: ImageVersion) -> bool:
        return version.may_be_used_by(self._user, self._project)

    def _may_be_foreign(self, word: str) -> bool:
        """Return whether it names an image by its own name, and none among those that the catalog keeps from this user.

        An id could be any image's. If the catalog keeps an image of a namespace from this user, they may take nothing
        else of that namespace, except from repositories that are wholly theirs to use: a finer rule would show them
        which images are there.
        """
        name = parse_image_name(word)
        if name is None or not self._foreign:
            return False
        beside = [(version, other) for version, other in self._named if other.namespace == name.namespace]
        same = [version for version, other in beside if other.repository == name.repository]
        return all(map(self._may_use, same or [version for version, _ in beside]))

    def _is_meant_so(self, word: str) -> bool:
        """Return whether the reference itself names a registry or a digest, or an agent holds it."""
        return "/" in word or "@" in word or familiar(word) in self._held

    def _near(self, word: str) -> list[str]:
        usable = [version for version in self._all if self._may_use(version)]
        name = word.partition(":")[0]
        versions = [w for version in usable for w in version.words if ":" in w and w.partition(":")[0] == name]
        if ":" in word and versions:
            return versions[:5]
        words = [word for version in usable for word in version.words]
        return difflib.get_close_matches(word, words, n=2, cutoff=_NEAR)


def with_images(spec: SessionSpec, choosing: Choosing, default_image: str) -> SessionSpec:
    """Return the spec with references for image names, restricted to agents of the images' architecture.

    Raises SpecError with every image that is not available, and with each slot that a role has too little of for its
    image.
    """
    errors: list[FieldError] = []
    chosen: dict[str, ImageVersion | None] = {}
    words = {"": spec.image or default_image} | {role.name: role.image for role in spec.roles if role.image}
    for word in dict.fromkeys(words.values()):
        try:
            chosen[word] = choosing.version(word)
        except SpecError as error:
            errors += error.errors
    if errors:
        raise SpecError(errors)
    errors += _shortages(spec, words, chosen)
    labels = dict(spec.labels)
    architectures = sorted({version.architecture for version in chosen.values() if version and version.architecture})
    if len(architectures) > 1:
        problem = f"its images are for different architectures ({', '.join(architectures)})"
        errors.append(FieldError("image", problem, "choose images of one architecture"))
    elif architectures and labels.get(LABEL, architectures[0]) != architectures[0]:
        problem = f"{LABEL}={labels[LABEL]} is asked for, and the image is for {architectures[0]}"
        errors.append(FieldError("labels", problem, "leave the label out, or choose another image"))
    elif architectures:
        labels[LABEL] = architectures[0]
    if errors:
        raise SpecError(errors)
    return spec.model_copy(
        update={
            "image": _reference(words[""], chosen),
            "labels": labels,
            "roles": tuple(
                role.model_copy(update={"image": _reference(role.image, chosen)}) if role.image else role
                for role in spec.roles
            ),
        }
    )


def _reference(word: str, chosen: Mapping[str, ImageVersion | None]) -> str:
    version = chosen[word]
    return version.reference if version else unmistakable(word)


def _shortages(
    spec: SessionSpec, words: Mapping[str, str], chosen: Mapping[str, ImageVersion | None]
) -> Iterable[FieldError]:
    said: set[FieldError] = set()
    listed = {role.name for role in spec.roles}
    for role in spec.kernel_roles(spec.sizes[1]):
        version = chosen[words.get(role.name, words[""])]
        for error in shortages(version, role.slots) if version else ():
            own = role.name in listed
            shown = FieldError("roles", f"{error.field} of role {role.name}: {error.problem}", error.remedy)
            this = shown if own else error
            if this not in said:
                said.add(this)
                yield this

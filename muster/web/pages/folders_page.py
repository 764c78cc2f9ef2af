"""`/folders`: a user's data folders and those that others share with them; create, share, limit and remove them."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response

from muster.core.model.folders import few_names
from muster.core.model.projects import DEFAULT_PROJECT
from muster.core.spec.mounts import HOME
from muster.core.values.errors import BadInputError
from muster.core.values.units import parse_bytes, spell_bytes
from muster.service.folders.owned import FolderQuery
from muster.service.folders.views import FolderView
from muster.web.api.requests import note_quota
from muster.web.viewer import CurrentViewer, Viewer, is_htmx

router = APIRouter(prefix="/folders", include_in_schema=False)
Text = Annotated[str, Query(max_length=255, pattern=r"^[^\x00]*$")]
Named = Annotated[str, Path(max_length=255, pattern=r"^[^\x00]*$")]
Typed = Annotated[str, Form(max_length=255, pattern=r"^[^\x00]*$")]


@router.get("")
def folders(
    viewer: CurrentViewer, *, project: Text = DEFAULT_PROJECT, everybody: bool = False, sizes: bool = False
) -> Response:
    """List the folders. With `sizes`, agents measure them, which takes seconds: the page requests that by itself."""
    everybody = everybody and viewer.is_admin
    query = FolderQuery(everything=everybody, project=project.strip() or DEFAULT_PROJECT, sizes=sizes)
    listing = viewer.backend.folders.search(query)
    return viewer.page(
        "folders.html",
        listing=listing,
        project=query.project,
        everybody=everybody,
        sizes=sizes,
        path_of=_path,
        # The filter is no part of what is refreshed.
        words=None if is_htmx(viewer.connection) else viewer.backend.lists.recent_words(),
    )


@router.post("")
def create(viewer: CurrentViewer, *, name: Typed = "", quota: Typed = "", owner: Typed = "") -> Response:
    made = viewer.backend.folders.create(name.strip(), owner.strip() or None, _quota(quota))
    return viewer.go(_path(made))


@router.get("/{owner}/{name}")
def folder(viewer: CurrentViewer, owner: Named, name: Named, *, project: Text = "", sizes: bool = False) -> Response:
    found = viewer.backend.folders.show(name, owner, project=project or DEFAULT_PROJECT, sizes=sizes)
    if sizes and is_htmx(viewer.connection):
        return viewer.fragment("folder.html", "size", folder=found, sizes=sizes)
    return viewer.page(
        "folder.html",
        folder=found,
        sizes=sizes,
        project=project,
        path=_path(found),
        home=HOME,
        may_change=_may_change(viewer, found),
    )


@router.post("/{owner}/{name}/share")
def share(viewer: CurrentViewer, owner: Named, name: Named, *, whom: Typed = "", access: Typed = "ro") -> Response:
    if access not in {"ro", "rw"}:
        raise BadInputError(f"access: there is no {access!r}; use ro or rw")
    viewer.backend.folders.share(name, owner, whom.strip(), read_only=access == "ro")
    return viewer.announce(f"{whom.strip()} may mount {name}, {'read-only' if access == 'ro' else 'to read and write'}")


@router.post("/{owner}/{name}/unshare")
def unshare(viewer: CurrentViewer, owner: Named, name: Named, *, whom: Typed = "") -> Response:
    mounted_by = viewer.backend.folders.unshare(name, owner, whom).still_mounted_by
    rest = f"; sessions that keep it until they end: {few_names(mounted_by)}" if mounted_by else ""
    return viewer.announce(f"{name} is no longer shared with {whom}{rest}")


@router.post("/{owner}/{name}/quota")
def set_quota(request: Request, viewer: CurrentViewer, owner: Named, name: Named, *, quota: Typed = "") -> Response:
    quota_bytes = _quota(quota)
    note_quota(request, quota_bytes)
    changed = viewer.backend.folders.set_quota(name, owner, quota_bytes)
    text = f"{name} may hold {'any amount' if quota_bytes is None else spell_bytes(quota_bytes)}"
    agents = ", ".join(sorted(changed.quota_not_enforced))
    return viewer.announce(f"{text}; not enforced on {agents}" if agents else text)


@router.post("/{owner}/{name}/remove")
def remove(viewer: CurrentViewer, owner: Named, name: Named, *, confirmed: Typed = "") -> Response:
    """Remove the folder with its data; `confirmed` must be its name."""
    if confirmed.strip() != name:
        raise BadInputError(f"write the folder's name, {name}, to remove it with all its data")
    removed = viewer.backend.folders.remove(name, owner, lambda _agent: None)
    if removed.removed:
        return viewer.go("/folders")
    agents = ", ".join(removed.left_on)
    return viewer.announce(
        f"{name} can no longer be mounted. Its data is still on {agents}: remove it again once these answer"
    )


def _path(folder: FolderView) -> str:
    return f"/folders/{quote(folder.owner, safe='')}/{quote(folder.name, safe='')}"


def _may_change(viewer: Viewer, folder: FolderView) -> bool:
    return viewer.may_change and (viewer.is_admin or folder.owner == viewer.user)


def _quota(text: str) -> int | None:
    """Return the quota in bytes; None for an empty text or `none`. Raises BadInputError."""
    if text.strip() in {"", "none"}:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise BadInputError(f"quota: {error}; write bytes such as 512M, 4G or 1.5T, or nothing for no quota") from None

"""`/folders`: data folders, one's own and those that others share; made, shared, limited, removed."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Path, Query
from fastapi.responses import Response

from muster.core.model.folders import Folder, named
from muster.core.spec.session_spec import HOME
from muster.core.values.errors import BadInputError
from muster.core.values.slots import format_bytes, parse_bytes
from muster.service.folders.owned import DEFAULT_PROJECT, FolderQuery
from muster.service.folders.views import FolderDetails
from muster.web.viewer import Visiting, Visitor

router = APIRouter(prefix="/folders", include_in_schema=False)
Text = Annotated[str, Query(max_length=255, pattern=r"^[^\x00]*$")]
Named = Annotated[str, Path(max_length=255, pattern=r"^[^\x00]*$")]
Filled = Annotated[str, Form(max_length=255, pattern=r"^[^\x00]*$")]


@router.get("")
def folders(
    visitor: Visiting, *, project: Text = DEFAULT_PROJECT, everybody: bool = False, sizes: bool = False
) -> Response:
    """With `sizes` the agents are asked how much the folders hold, which takes seconds."""
    wanted = FolderQuery(everything=everybody, project=project.strip() or DEFAULT_PROJECT, sizes=sizes)
    told = visitor.backend.folders.search(wanted)
    return visitor.page(
        "folders.html",
        told=told,
        project=wanted.project,
        everybody=everybody and visitor.is_admin,
        sizes=sizes,
        path_of=_path,
    )


@router.post("")
def create(visitor: Visiting, *, name: Filled = "", quota: Filled = "", owner: Filled = "") -> Response:
    told = visitor.backend.folders.create(name.strip(), owner.strip() or None, _quota(quota))
    return visitor.go(_path(told.items[0].folder))


@router.get("/{owner}/{name}")
def folder(visitor: Visiting, owner: Named, name: Named, *, project: Text = "", sizes: bool = False) -> Response:
    told = visitor.backend.folders.show(name, owner, project=project or DEFAULT_PROJECT, sizes=sizes)
    (shown,) = told.items
    return visitor.page(
        "folder.html",
        told=shown,
        problems=told.problems,
        sizes=sizes,
        project=project,
        path=_path(shown.folder),
        home=HOME,
        may_change=_may_change(visitor, shown),
    )


@router.post("/{owner}/{name}/share")
def share(visitor: Visiting, owner: Named, name: Named, *, whom: Filled = "", access: Filled = "ro") -> Response:
    if access not in {"ro", "rw"}:
        raise BadInputError(f"access: there is no {access!r}; use ro or rw")
    visitor.backend.folders.share(name, owner, whom.strip(), read_only=access == "ro")
    return visitor.announce(
        f"{whom.strip()} may mount {name}, {'read-only' if access == 'ro' else 'to read and write'}"
    )


@router.post("/{owner}/{name}/unshare")
def unshare(visitor: Visiting, owner: Named, name: Named, *, whom: Filled = "") -> Response:
    keep = visitor.backend.folders.unshare(name, owner, whom)
    rest = f"; these keep it until they end: {named(keep)}" if keep else ""
    return visitor.announce(f"{name} is no longer shared with {whom}{rest}")


@router.post("/{owner}/{name}/quota")
def set_quota(visitor: Visiting, owner: Named, name: Named, *, quota: Filled = "") -> Response:
    most = _quota(quota)
    told = visitor.backend.folders.set_quota(name, owner, most)
    unenforced = [told.use.unenforced for told in told.items if told.use]
    text = f"{name} may hold {'any amount' if most is None else format_bytes(most)}"
    agents = ", ".join(sorted(agent for by_agent in unenforced for agent in by_agent))
    return visitor.announce(f"{text}; not enforced on {agents}" if agents else text)


@router.post("/{owner}/{name}/remove")
def remove(visitor: Visiting, owner: Named, name: Named, *, confirmed: Filled = "") -> Response:
    """`confirmed` is the folder's name, written once more."""
    if confirmed.strip() != name:
        raise BadInputError(f"confirmed: write the folder's name, {name}, to remove it with all that is in it")
    removed = visitor.backend.folders.remove(name, owner, lambda _agent: None)
    if removed.left is None:
        return visitor.go("/folders")
    agents = ", ".join(removed.left.left_on)
    return visitor.announce(
        f"nobody can mount {name} any more; it is still on {agents}: remove it again when that answers"
    )


def _path(folder: Folder) -> str:
    return f"/folders/{quote(folder.owner, safe='')}/{quote(folder.name, safe='')}"


def _may_change(visitor: Visitor, told: FolderDetails) -> bool:
    return visitor.may_change and (visitor.is_admin or told.folder.owner == visitor.user)


def _quota(text: str) -> int | None:
    """Nothing and `none` are no quota. Raises BadInputError."""
    if text.strip() in {"", "none"}:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise BadInputError(f"quota: {error}; write bytes such as 512M, 4G or 1.5T, or nothing for no quota") from None

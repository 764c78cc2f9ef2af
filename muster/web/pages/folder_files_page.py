"""The files of a data folder: what is in a directory, a preview of a file, uploads and downloads."""

from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import Response

from muster.contract.values import printable
from muster.core.model.projects import DEFAULT_PROJECT
from muster.core.values.errors import BadInputError
from muster.service.folders.files import FilePlace
from muster.service.folders.views import FilesView, FileView
from muster.web.api.requests import note_file
from muster.web.streams.file_content import MOST_SHOWN_BYTES, file_response, first_bytes, picture_type, take_upload
from muster.web.viewer import CurrentViewer, Viewer

router = APIRouter(prefix="/folders/{owner}/{name}", include_in_schema=False)
Named = Annotated[str, Path(max_length=255, pattern=r"^[^\x00]*$")]
Text = Annotated[str, Query(max_length=4096, pattern=r"^[^\x00]*$")]
Typed = Annotated[str, Form(max_length=4096, pattern=r"^[^\x00]*$")]
# Of a file that is shown as text.
MOST_TEXT_BYTES = 256 << 10


def _place(
    request: Request, owner: Named, name: Named, *, path: Text = "", agent: Text = "", project: Text = ""
) -> FilePlace:
    note_file(request, path)
    return FilePlace(name, owner, path, agent or None, project or DEFAULT_PROJECT)


Place = Annotated[FilePlace, Depends(_place)]


@router.get("/files")
def files(viewer: CurrentViewer, place: Place) -> Response:
    found = viewer.backend.folders.look(place)
    there = FilePlace(place.folder, place.owner, found.path, found.agent, place.project)
    preview = _preview(viewer, there, found) if found.kind == "file" else None
    return viewer.page(
        "folder_files.html",
        place=there,
        found=found,
        preview=preview,
        parents=_parents(found),
        shown=printable,
        path_in=_path_in,
        href=lambda what, path, agent=found.agent: _href(there, what, path, agent),
        most_text_bytes=MOST_TEXT_BYTES,
    )


@router.get("/content")
async def content(request: Request, viewer: CurrentViewer, place: Place, *, show: bool = False) -> Response:
    """Return a file to be saved, or with `show` a picture that the page shows; a directory as a tar file."""
    return await file_response(request, viewer.backend, place, viewer.is_signed_in, shows=show)


@router.put("/content")
async def upload(request: Request, viewer: CurrentViewer, place: Place, *, replace: bool = False) -> Response:
    await take_upload(request, viewer.backend, place, viewer.is_signed_in, replaces=replace)
    return Response(status_code=204)


@router.post("/files/directory")
def make_directory(viewer: CurrentViewer, place: Place, *, directory: Typed = "") -> Response:
    name = _one_name(directory)
    viewer.backend.folders.make_directory(_in(place, f"{place.path}/{name}"))
    return viewer.announce(f"{name} is made")


@router.post("/files/rename")
def rename(viewer: CurrentViewer, place: Place, *, to: Typed = "") -> Response:
    target = to.strip("/")
    viewer.backend.folders.rename_file(place, target)
    return viewer.go(_href(place, "files", target, place.agent))


@router.post("/files/remove")
def remove(viewer: CurrentViewer, place: Place) -> Response:
    viewer.backend.folders.remove_file(place)
    return viewer.go(_href(place, "files", place.path.rpartition("/")[0], place.agent))


def _in(place: FilePlace, path: str) -> FilePlace:
    return FilePlace(place.folder, place.owner, path, place.agent, place.project)


def _one_name(text: str) -> str:
    """Raises BadInputError."""
    name = text.strip()
    if not name or "/" in name:
        raise BadInputError("directory: write one name without a slash, such as results")
    return name


def _parents(found: FilesView) -> list[tuple[str, str]]:
    """Return the directories above, each by its name and its path."""
    parts = found.path.split("/") if found.path else []
    return [(part, "/".join(parts[: number + 1])) for number, part in enumerate(parts[:-1])]


def _path_in(found: FilesView, entry: FileView) -> str:
    return f"{found.path}/{entry.name}" if found.path else entry.name


def _href(place: FilePlace, what: str, path: str, agent: str | None) -> str:
    query = {"path": path, "agent": agent or "", "project": "" if place.project == DEFAULT_PROJECT else place.project}
    given = urlencode({key: value for key, value in query.items() if value})
    folder = f"/folders/{quote(place.owner or '', safe='')}/{quote(place.folder, safe='')}"
    return f"{folder}/{what}?{given}" if given else f"{folder}/{what}"


def _preview(viewer: Viewer, place: FilePlace, found: FilesView) -> str | None:
    """Return `picture`, or the text that a file begins with; None for what is neither."""
    beginning = first_bytes(viewer.backend, place, MOST_TEXT_BYTES)
    if picture_type(beginning):
        return "picture" if found.size_bytes <= MOST_SHOWN_BYTES else None
    if b"\x00" in beginning:
        return None
    # The last character may be cut in two.
    text = beginning.decode(errors="replace" if len(beginning) < MOST_TEXT_BYTES else "ignore")
    return f"text:{printable(text)}"

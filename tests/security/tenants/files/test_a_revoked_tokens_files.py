"""Files on their way to or from a user whose token is revoked meanwhile: they break off, and nothing is kept."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from muster.service.folders.files import OpenedFile, ReadFile
from muster.service.folders.owned import OwnedFolders
from muster.web.streams import file_content
from tests.waiting import PATIENCE_S

PIECE = b"x" * (64 << 10)
# Far more than goes through while a token is looked up once.
MANY = 500
API, PAGE = "/api/v1/folders/data/content", "/folders/ada/data/content"


class Kept:
    """What a folder has of an upload."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.finished = False

    def write(self, _piece: bytes) -> None:
        self.began.set()

    def finish(self) -> None:
        self.finished = True


@pytest.fixture(autouse=True)
def looked_up_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_content, "CHECK_S", 0.0)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    made = Kept()

    @contextmanager
    def upload(*_place: object, **_how: object) -> Iterator[Kept]:
        yield made

    monkeypatch.setattr(OwnedFolders, "upload", upload)
    return made


Ends = Callable[[], object]


@pytest.fixture(params=["the token", "the sign-in"])
def reader(request, service, caller, browser):
    """Return a client of ada's with the path of a file, and what ends the right to it."""
    if request.param == "the token":
        return caller("ada"), API, lambda: service.service.tokens.revoke("ada-user")
    ada = browser("ada")
    return ada, PAGE, lambda: service.service.tokens.sign_out(ada.cookie)


@pytest.mark.parametrize("size", [MANY * len(PIECE), None])
def test_a_download_breaks_off(reader, monkeypatch, size):
    ada, path, ends = reader
    sent = []

    @contextmanager
    def open_file(*_place: object) -> Iterator[OpenedFile]:
        def pieces() -> Iterator[bytes]:
            for _ in range(MANY):
                sent.append(PIECE)
                if len(sent) == 3:
                    ends()
                yield PIECE

        yield OpenedFile(ReadFile("weights", is_directory=size is None, size=size), pieces())

    monkeypatch.setattr(OwnedFolders, "open_file", open_file)
    answer = ada.get(path)
    assert (answer.status_code, len(sent)) == (200, 3)
    assert ada.get(path, follow_redirects=False).status_code in {303, 401}


def test_an_upload_is_refused_and_nothing_is_kept_of_it(reader, server, kept):
    ada, path, ends = reader
    address = urlsplit(server)
    client = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE_S)
    client.putrequest("PUT", f"{path}?path=weights")
    headers = {name: ada.headers[name] for name in ("authorization", "x-csrf-token") if name in ada.headers}
    cookie = {"Cookie": f"muster={ada.cookie}"} if path == PAGE else {}
    for name, value in {**headers, **cookie, "Content-Length": str(4 << 20)}.items():
        client.putheader(name, value)
    client.endheaders()
    client.send(bytes(2 << 20))
    assert kept.began.wait(PATIENCE_S)
    ends()
    client.send(bytes(2 << 20))
    assert client.getresponse().status == 401
    assert not kept.finished
    client.close()

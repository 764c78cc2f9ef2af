"""Files of folders over the API and the pages: nothing outside a folder is reached, nothing in one is run.

The program that agents run is the real one, and so are its uids.
"""

import io
import os
import tarfile
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from muster.contract.files import LookAnswer
from muster.core.agents.agent_connection import AgentConnection
from muster.core.model.folders import Folder, FolderShare
from muster.core.model.token import Scope, Token
from muster.core.values.errors import MusterError, NotFoundError, NotPossibleInStateError
from muster.engine import agent_program
from muster.service.folders import files as folder_files
from muster.service.folders.files import FilePlace
from muster.web.separation.client import brokered_service
from muster.web.streams.file_content import MAX_FILE_STREAMS
from tests.modules.agent_code import made_folders
from tests.security.clients.taken_over_server import brokered_server
from tests.strategies.agents import make_agent

API = "/api/v1/folders"
ADA, BOB = 4711, 4712


def local_agent(agent_id="a1"):
    made = make_agent(agent_id)
    return replace(made, connection=AgentConnection(connection="local"))


@pytest.fixture
def root(service, tmp_path):
    """Return where the agents' folders are. Ada and Bob have uids of their own."""
    place = tmp_path / "folders"
    place.mkdir()
    object.__setattr__(service.settings, "folders_root", place)
    object.__setattr__(service.settings, "owner_uids", {"ada": ADA, "bob": BOB, "eve": 4713})
    service.store.agents.save([local_agent()])
    return place


@pytest.fixture
def made(service, root):
    """Make a folder in the store and on the host, and return its directory."""

    def make(owner, name, *shares):
        number = len(service.store.folders.all()) + 1
        folder = Folder(f"{number:08x}-0000-4000-8000-000000000000", owner, name, 1.0)
        service.store.folders.add(folder)
        for share in shares:
            service.store.folders.share(folder, share)
        uid = service.settings.launch_policy().uid_of(owner)
        made_folders.make(str(root), made_folders.Entry(folder.path, uid, folder.number, None))
        return root / folder.path

    return make


def names(answer):
    assert answer.status_code == 200, answer.text
    return [entry["name"] for entry in answer.json()["items"]]


def put(client, path, content, folder="data", **more):
    return client.put(f"{API}/{folder}/content", params={"path": path, **more}, content=content)


def test_files_are_written_listed_read_renamed_and_removed(caller, made):
    data = made("ada", "data")
    ada = caller("ada")
    assert ada.post(f"{API}/data/directories", params={"path": "results"}).status_code == 204
    content = os.urandom(3 << 20)
    assert put(ada, "results/weights.bin", content).status_code == 204
    written = data / "results" / "weights.bin"
    assert (written.read_bytes() == content, written.stat().st_uid, written.stat().st_mode & 0o777) == (
        True, ADA, 0o660,
    )  # fmt: skip
    assert put(ada, "results/weights.bin", b"other").status_code == 409
    assert put(ada, "results/weights.bin", b"other", replace="true").status_code == 204
    assert put(ada, "results/empty", b"").status_code == 204
    listed = ada.get(f"{API}/data/files", params={"path": "results"})
    assert names(listed) == ["empty", "weights.bin"]
    assert (listed.json()["agent"], listed.json()["items"][1]["size_bytes"]) == ("a1", 5)
    read = ada.get(f"{API}/data/content", params={"path": "results/weights.bin"})
    assert (read.content, read.headers["content-length"]) == (b"other", "5")
    moved = ada.post(f"{API}/data/files/rename", params={"path": "results/weights.bin"}, json={"to": "kept"})
    assert moved.status_code == 204
    taken = ada.post(f"{API}/data/files/rename", params={"path": "kept"}, json={"to": "results/empty"})
    assert (taken.status_code, (data / "kept").read_bytes()) == (409, b"other")
    assert ada.delete(f"{API}/data/files", params={"path": "results"}).status_code == 204
    assert [path.name for path in data.iterdir()] == ["kept"]


def test_a_directory_is_downloaded_as_a_tar_file(caller, made):
    data = made("ada", "data")
    (data / "deep" / "er").mkdir(parents=True)
    (data / "deep" / "er" / "one").write_text("1")
    (data / "deep" / "link").symlink_to("/etc/passwd")
    answer = caller("ada").get(f"{API}/data/content", params={"path": "deep"})
    assert answer.headers["content-type"] == "application/x-tar"
    assert "deep.tar" in answer.headers["content-disposition"]
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert archive.extractfile("./er/one").read() == b"1"
        assert archive.getmember("./link").issym()


@pytest.mark.parametrize(
    "path", ["..", "../x", "a/../../x", "/../..", ".", "a/./b", "x" * 256, "a/" * 2040 + "x" * 100]
)
def test_a_path_that_leads_out_is_refused_before_any_agent_hears_of_it(caller, made, monkeypatch, path):
    made("ada", "data")
    monkeypatch.setattr(folder_files, "running", None)
    ada = caller("ada")
    for answer in (
        ada.get(f"{API}/data/files", params={"path": path}),
        ada.get(f"{API}/data/content", params={"path": path}),
        put(ada, path, b"x"),
        ada.delete(f"{API}/data/files", params={"path": path}),
        ada.post(f"{API}/data/directories", params={"path": path}),
        ada.post(f"{API}/data/files/rename", params={"path": "x"}, json={"to": path}),
    ):
        assert answer.status_code == 422, path
        assert answer.json()["detail"].startswith(("path: ", "to: "))


def test_links_lead_nowhere(caller, made, tmp_path):
    data = made("ada", "data")
    outside = tmp_path / "outside"
    outside.mkdir(0o777)
    outside.chmod(0o777)
    (outside / "secret").write_text("secret")
    (outside / "secret").chmod(0o666)
    (data / "way").symlink_to(outside)
    (data / "file").symlink_to(outside / "secret")
    ada = caller("ada")
    assert {entry["kind"] for entry in ada.get(f"{API}/data/files").json()["items"]} == {"link"}
    for path in ("way/secret", "file"):
        assert ada.get(f"{API}/data/content", params={"path": path}).status_code in {404, 409}
    assert ada.get(f"{API}/data/files", params={"path": "way/secret"}).status_code == 404
    assert put(ada, "way/new", b"x").status_code == 404
    assert ada.delete(f"{API}/data/files", params={"path": "way/secret"}).status_code == 404
    assert ada.post(f"{API}/data/directories", params={"path": "way/new"}).status_code == 404
    # The link itself may be replaced and removed, never what it leads to.
    assert put(ada, "file", b"mine", replace="true").status_code == 204
    assert ada.delete(f"{API}/data/files", params={"path": "way"}).status_code == 204
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("secret", "secret")]
    assert [(path.name, path.read_text()) for path in data.iterdir()] == [("file", "mine")]


def test_a_pipe_in_a_files_place_holds_up_nobody(caller, made):
    data = made("ada", "data")
    os.mkfifo(data / "pipe")
    ada = caller("ada")
    assert ada.get(f"{API}/data/content", params={"path": "pipe"}).status_code == 409
    assert ada.get(f"{API}/data/files").json()["items"][0]["kind"] == "other"


def test_what_the_users_kernels_may_not_read_they_may_not(caller, made):
    """Other users' files that a folder holds, and those of root: the program has the user's rights."""
    data = made("ada", "data")
    private = data / "roots"
    private.write_text("root's")
    private.chmod(0o600)
    os.chown(private, 0, 0)
    closed = data / "closed"
    closed.mkdir(0o700)
    os.chown(closed, 0, 0)
    ada = caller("ada")
    assert ada.get(f"{API}/data/content", params={"path": "roots"}).status_code == 403
    assert ada.get(f"{API}/data/files", params={"path": "closed"}).status_code == 403
    assert ada.delete(f"{API}/data/files", params={"path": "closed/x"}).status_code == 403
    assert put(ada, "closed/x", b"x").status_code == 403


def test_only_those_with_a_share_reach_a_folder_and_readers_only_read(caller, made):
    data = made("ada", "data", FolderShare("bob", read_only=True), FolderShare("eve", read_only=False))
    (data / "one").write_text("1")
    os.chown(data / "one", ADA, data.stat().st_gid)
    (data / "one").chmod(0o660)
    params = {"owner": "ada", "path": "one"}
    assert caller("mallory").get(f"{API}/data/files", params={"owner": "ada"}).status_code == 404
    bob, eve = caller("bob"), caller("eve")
    assert bob.get(f"{API}/data/content", params=params).content == b"1"
    assert bob.get(f"{API}/data/files", params=params).json()["may_change"] is False
    for answer in (
        put(bob, "two", b"2", owner="ada"),
        bob.delete(f"{API}/data/files", params=params),
        bob.post(f"{API}/data/directories", params={"owner": "ada", "path": "d"}),
        bob.post(f"{API}/data/files/rename", params=params, json={"to": "x"}),
        caller("ada", Scope.READ).delete(f"{API}/data/files", params=params),
    ):
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:muster:scope")
    assert put(eve, "hers", b"3", owner="ada").status_code == 204
    assert (data / "hers").stat().st_uid == 4713
    # It belongs to the folder's group, so that its owner may read it.
    assert caller("ada").get(f"{API}/data/content", params={"path": "hers"}).content == b"3"
    assert sorted(path.name for path in data.iterdir()) == ["hers", "one"]


def test_an_upload_that_breaks_off_leaves_nothing(caller, made):
    data = made("ada", "data")
    ada = caller("ada")

    def broken():
        yield b"x" * 100

    answer = ada.put(
        f"{API}/data/content", params={"path": "part"}, content=broken(), headers={"Content-Length": "1000"}
    )
    assert answer.status_code == 422
    assert ada.put(f"{API}/data/content", params={"path": "part"}, content=broken()).status_code == 422
    assert list(data.iterdir()) == []


def test_an_upload_has_a_bound_and_needs_a_token(caller, made, service):
    made("ada", "data")
    service.set_web(upload_max_size=1000)
    ada = caller("ada")
    assert put(ada, "large", b"x" * 1001).status_code == 422
    assert put(ada, "small", b"x" * 1000).status_code == 204
    del ada.headers["Authorization"]
    read = []

    def content():
        read.append(1)
        yield b"x" * 100

    assert (put(ada, "none", content()).status_code, read) == (401, [])


def test_one_user_takes_not_all_places(caller, made, service, app):
    made("ada", "data")
    service.set_web(files=1)
    ada = caller("ada")
    app.state.file_streams.add(type("Stream", (), {"user": "ada"})())
    assert put(ada, "x", b"x").status_code == 429
    assert ada.get(f"{API}/data/content").status_code == 429
    app.state.file_streams.clear()
    app.state.file_streams.update(type("Stream", (), {"user": "bob"})() for _ in range(MAX_FILE_STREAMS))
    assert put(ada, "x", b"x").status_code == 429


HOSTILE = {
    "page.html": b"<script>alert(1)</script>",
    "picture.svg": b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
    "looks.png": b"\x89PNG\r\n\x1a\n<script>alert(1)</script>",
    "n<img src=x onerror=alert(1)>.txt": b"plain",
    "a\nb\u202e.txt": b"plain",
}


def test_nothing_in_a_folder_is_run_by_a_browser(browser, made):
    data = made("ada", "data")
    for name, content in HOSTILE.items():
        (data / name).write_bytes(content)
    (data / os.fsdecode(b"odd-\xff\xfe")).touch()
    ada = browser("ada")
    page = ada.get("/folders/ada/data/files").text
    assert "<img src=x" not in page
    assert "\u202e" not in page
    assert "its name cannot be shown" in page
    for name, content in HOSTILE.items():
        shown = ada.get("/folders/ada/data/files", params={"path": name})
        assert shown.status_code == 200
        assert "<script>alert" not in shown.text
        assert 'onload="alert' not in shown.text
        got = ada.get("/folders/ada/data/content", params={"path": name, "show": "true"})
        assert got.content == content
        is_picture = name == "looks.png"
        assert got.headers["content-type"] == ("image/png" if is_picture else "application/octet-stream")
        assert got.headers["content-disposition"].startswith("inline" if is_picture else "attachment")
        assert got.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'; sandbox" in got.headers["content-security-policy"]


def test_no_other_page_changes_files(browser, made):
    data = made("ada", "data")
    (data / "one").write_text("1")
    ada = browser("ada")
    for headers in ({"X-CSRF-Token": "0" * 64}, {"Origin": "https://evil.example"}):
        for path in ("directory", "rename", "remove"):
            form = {"directory": "d", "to": "x"}
            answer = ada.post(f"/folders/ada/data/files/{path}", params={"path": "one"}, data=form, headers=headers)
            assert answer.status_code == 403
        answer = ada.put("/folders/ada/data/content", params={"path": "new"}, content=b"x", headers=headers)
        assert answer.status_code == 403
    assert [path.name for path in data.iterdir()] == ["one"]


def test_the_pages_upload_make_rename_and_remove(browser, made):
    data = made("ada", "data")
    ada = browser("ada")
    htmx = {"HX-Request": "true"}
    assert ada.post("/folders/ada/data/files/directory", data={"directory": "run 1"}, headers=htmx).status_code == 204
    upload = ada.put("/folders/ada/data/content", params={"path": "run 1/log.txt"}, content=b"lo&ss", headers=htmx)
    assert upload.status_code == 204
    page = ada.get("/folders/ada/data/files", params={"path": "run 1/log.txt"}).text
    assert "lo&amp;ss" in page
    renamed = ada.post(
        "/folders/ada/data/files/rename", params={"path": "run 1/log.txt"}, data={"to": "log"}, headers=htmx
    )
    assert renamed.headers["hx-redirect"] == "/folders/ada/data/files?path=log"
    gone = ada.post("/folders/ada/data/files/remove", params={"path": "run 1"}, headers=htmx)
    assert gone.headers["hx-redirect"] == "/folders/ada/data/files"
    assert [(path.name, path.read_bytes()) for path in data.iterdir()] == [("log", b"lo&ss")]


def test_changes_of_files_are_in_the_audit_log(caller, made, service):
    made("ada", "data")
    ada = caller("ada")
    put(ada, "run/1", b"x")
    put(ada, "one & two", b"x")
    log = (service.settings.state_dir / "audit.log").read_text()
    assert '"path": "/api/v1/folders/data/content?path=one%20%26%20two"' in log
    assert "path=run/1" in log


def test_folders_of_agents_that_do_not_share_them_are_told_apart(caller, made, service):
    made("ada", "data")
    service.store.agents.save([local_agent("a1"), local_agent("a2")])
    ada = caller("ada")
    found = ada.get(f"{API}/data/files").json()
    assert (found["agent"], found["other_agents"]) == ("a1", ["a2"])
    assert ada.get(f"{API}/data/files", params={"agent": "a2"}).json()["agent"] == "a2"
    assert ada.get(f"{API}/data/files", params={"agent": "a3"}).status_code == 404


def test_two_agents_of_one_network_file_system_have_one_folder(made, service, monkeypatch):
    made("ada", "data")
    service.store.agents.save([local_agent("a1"), local_agent("a2")])
    there = {"name": "data", "is_text": True, "kind": "directory", "size": 0, "modified": 0}
    answer = LookAnswer(**there, entries=(), left_out=0, shared_from="nfs server:/folders")
    monkeypatch.setattr(folder_files.FolderFiles, "_look", lambda *_arguments: answer)
    backend = service.service.backend(Token("t", "ada", Scope.USER, 0.0))
    assert backend.folders.look(folder_files.FilePlace("data")).other_agents == []


@pytest.mark.parametrize(
    "said",
    [
        "",
        "no answer at all\n" * 9000,
        "muster:files\n",
        "muster:files\n{}\n",
        'muster:files\n{"problem": "x", "kind": "rights"}\n',
        "muster:files\n" + "[" * 100_000 + "\n",
        "muster:files\n" + "x" * (5 << 20),
        'muster:files\n{"name": "x", "is_text": true, "kind": "file", "size": -1, "modified": 0, "sent": -1}\n',
    ],
)
def test_what_an_agent_says_is_not_trusted(caller, made, monkeypatch, tmp_path, said):
    made("ada", "data")
    (tmp_path / "said").write_text(said)
    monkeypatch.setattr(agent_program, "_AS_ROOT", f"cat {tmp_path}/said")
    ada = caller("ada")
    for what in ("files", "content"):
        answer = ada.get(f"{API}/data/{what}")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:muster:agent-unreachable")


def test_the_server_passes_files_on_by_its_broker(made, service, secret_of):
    data = made("ada", "data")
    secret = secret_of("ada")
    content = os.urandom(5 << 20)
    with brokered_server(service.service) as taken_over:
        own = brokered_service(taken_over.line)
        folders = own.backend(own.tokens.of_secret(secret)).folders
        place = folder_files.FilePlace("data", path="large")
        with folders.upload(place, len(content)) as upload:
            upload.write(content)
            upload.finish()
        assert (data / "large").read_bytes() == content
        with folders.open_file(place) as opened:
            assert (opened.file.size, b"".join(opened.pieces)) == (len(content), content)
        with folders.upload(replace(place, path="part"), 100) as upload:
            upload.write(b"x" * 50)
        with pytest.raises(NotFoundError), folders.open_file(replace(place, path="none")) as opened:
            pass
        # More than it announced is not written.
        with suppress(MusterError), folders.upload(replace(place, path="more"), 1) as upload:
            upload.write(b"12")
            upload.finish()
        assert taken_over.answers()
    assert sorted(path.name for path in data.iterdir()) in (["large"], ["large", "more"])
    assert not (data / "more").exists() or (data / "more").read_bytes() == b"1"


@pytest.mark.usefixtures("root")
def test_a_folder_that_no_agent_has_yet_says_so(caller, service):
    service.store.folders.add(Folder("0000000a-0000-4000-8000-000000000000", "ada", "new", 1.0))
    answer = caller("ada").get(f"{API}/new/files")
    assert (answer.status_code, "made there when a session mounts it" in answer.json()["detail"]) == (404, True)


def test_a_user_has_as_many_files_under_way_as_the_site_says(service, made):
    service.set_web(files=9)
    made("ada", "data")
    folders = service.service.backend(Token("mine", "ada", Scope.USER, 0.0)).folders
    with ExitStack() as under_way:
        for number in range(9):
            under_way.enter_context(folders.upload(FilePlace("data", path=f"part-{number}"), 1))
        with pytest.raises(NotPossibleInStateError, match="too many files of yours are read or written"):
            under_way.enter_context(folders.upload(FilePlace("data", path="one-more"), 1))
        # Who waits for them may look into folders meanwhile.
        assert len(folders.look(FilePlace("data")).items) == 9

"""Folders with an owner in the database."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from muster.core.model.folders import Folder, FolderMounter, FolderShare, mounted_folders
from muster.core.model.session import SessionState
from muster.core.values.errors import BadInputError, NameTakenError, NotFoundError, NotPossibleInStateError
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

DATA = Folder("d0000000-0000-4000-8000-000000000001", "ada", "data", NOW + 0.5, quota_bytes=1 << 41)
THEIRS = Folder("d0000000-0000-4000-8000-000000000002", "bob", "data", NOW)
PAPERS = Folder("d0000000-0000-4000-8000-000000000003", "bob", "papers", NOW)


@pytest.fixture(autouse=True)
def none_left(store):
    """Remove all folders: between tests, only sessions, agents and counters are removed."""
    for folder in store.folders.all():
        store.folders.removed_from(folder, folder.left_on)


def using(folder, number=1, **values):
    session = make_session(number, mounts=[folder.name], **values)
    return replace(session, owner=folder.owner, folders=mounted_folders(session.spec, folder.owner, [folder]))


def test_folders_are_read_as_they_were_made_by_owner_and_name(store):
    for folder in (PAPERS, THEIRS, DATA):
        store.folders.add(folder)
    assert store.folders.all() == (DATA, THEIRS, PAPERS)
    assert store.folders.find("ada", "data") == DATA
    with pytest.raises(NameTakenError, match="ada has a folder 'data' already"):
        store.folders.add(replace(PAPERS, id=PAPERS.id[:-1] + "9", owner="ada", name="data"))
    with pytest.raises(NotFoundError, match="eve has no folder 'data'; see `muster folder ls`"):
        store.folders.find("eve", "data")


def test_shares_are_kept_changed_and_taken_back(store):
    store.folders.add(DATA)
    store.folders.share(DATA, FolderShare("eve", read_only=True))
    store.folders.share(DATA, FolderShare("@vision", read_only=True))
    store.folders.share(DATA, FolderShare("eve", read_only=False))
    shares = (FolderShare("@vision", read_only=True), FolderShare("eve", read_only=False))
    assert set(store.folders.find("ada", "data").shares) == set(shares)
    store.folders.unshare(DATA, "eve")
    assert store.folders.find("ada", "data").shares == shares[:1]
    with pytest.raises(NotFoundError, match="folder data is not shared with eve"):
        store.folders.unshare(DATA, "eve")


def test_a_session_may_mount_its_users_own_folders_and_those_shared_with_it(store):
    for folder in (DATA, THEIRS, PAPERS):
        store.folders.add(folder)
    store.folders.share(PAPERS, FolderShare("ada", read_only=True))
    store.folders.share(THEIRS, FolderShare("@vision", read_only=True))

    def ids(*arguments):
        return {folder.id for folder in store.folders.mountable(*arguments)}

    assert ids("ada", "default") == {DATA.id, PAPERS.id}
    assert ids("ada", "vision") == {DATA.id, PAPERS.id, THEIRS.id}
    assert ids("eve", "default") == set()
    assert ids("eve", "default", [("ada", "data"), ("ada", "papers")]) == {DATA.id}


def test_a_folder_is_kept_while_a_session_that_has_not_ended_mounts_it(store):
    store.folders.add(DATA)
    session = using(DATA)
    store.add([session, make_session(2), using(DATA, 3, state=SessionState.TERMINATED)])
    assert store.get([session.id])[session.id].folders == session.folders
    assert store.folders.mounters() == {DATA.id: [FolderMounter(session.name, "ada")]}
    with pytest.raises(NotPossibleInStateError, match=f"folder data is in use by {session.name}; end them first"):
        store.folders.remove(DATA, NOW, ["a1"])
    assert store.folders.find("ada", "data") == DATA


def test_a_folder_goes_when_its_data_are_gone_from_the_last_agent(store):
    store.folders.add(DATA)
    store.folders.share(DATA, FolderShare("bob", read_only=True))
    removed = store.folders.remove(DATA, NOW, ["a2", "a1"])
    assert (removed.removed_at, removed.left_on) == (NOW, ("a1", "a2"))
    assert store.folders.mountable("ada", "default", [("ada", "data")]) == ()
    with pytest.raises(BadInputError, match="mounts: folder ada/data was removed just now"):
        store.add([using(DATA)])
    assert store.folders.removed_from(removed, ["a1"]).left_on == ("a2",)
    assert store.folders.remove(DATA, NOW + 9, ["a3"]).left_on == ("a2",)
    assert store.folders.removed_from(removed, ["a1", "a2"]) is None
    assert store.folders.all() == ()
    store.folders.add(DATA)
    assert store.folders.find("ada", "data").shares == ()


def test_a_folder_is_gone_once_its_data_are_gone_from_all_agents_whoever_says_so_at_once(url, open_store):
    agents = [f"a{number}" for number in range(8)]
    store = open_store(url)
    store.folders.add(DATA)
    removed = store.folders.remove(DATA, NOW, agents)
    barrier = threading.Barrier(len(agents))

    def gone(agent_id: str) -> None:
        own = open_store(url)
        barrier.wait()
        own.folders.removed_from(removed, [agent_id])

    with ThreadPoolExecutor(len(agents)) as pool:
        list(pool.map(gone, agents))
    assert store.folders.all() == ()


@pytest.mark.parametrize("grantee", ["eve", "@vision"])
def test_no_session_is_queued_with_a_folder_that_is_not_shared_with_it_any_more(store, grantee):
    """The share was changed while the session was prepared."""
    store.folders.add(DATA)
    mounted = mounted_folders(make_session(1, mounts=["data"]).spec, "ada", [DATA])
    theirs = replace(make_session(1, mounts=["ada/data"], project="vision"), owner="eve", folders=mounted)
    store.folders.share(DATA, FolderShare(grantee, read_only=False))
    store.add([theirs])
    theirs = replace(make_session(2, mounts=["ada/data"], project="vision"), owner="eve", folders=mounted)
    store.folders.share(DATA, FolderShare(grantee, read_only=True))
    with pytest.raises(BadInputError, match="mounts: folder ada/data is shared read-only since just now; mount it so"):
        store.add([theirs])
    store.folders.unshare(DATA, grantee)
    with pytest.raises(BadInputError, match="mounts: folder ada/data is not shared with eve any more; leave it out"):
        store.add([theirs])
    assert [mounter.session for mounter in store.folders.mounters()[DATA.id]] == [make_session(1).name]


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.folders.share(DATA, FolderShare("eve", read_only=True)),
        lambda store: store.folders.remove(DATA, NOW, ["a1"]),
    ],
    ids=["share", "remove"],
)
def test_what_is_done_to_a_folder_that_is_gone_is_not_done_to_another_of_its_name(store, change):
    """Another command has removed it, and made it anew, since this one looked it up."""
    store.folders.add(DATA)
    store.folders.removed_from(store.folders.remove(DATA, NOW, ["a1"]), ["a1"])
    for anew in ((), (replace(DATA, id=f"{DATA.id[:-1]}9"),)):
        for folder in anew:
            store.folders.add(folder)
        with pytest.raises(NotFoundError, match="ada has no folder 'data'"):
            change(store)
        assert store.folders.all() == anew


def test_a_quota_changes_alone(store):
    store.folders.add(DATA)
    store.folders.set_quota(DATA, None)
    assert store.folders.find("ada", "data") == replace(DATA, quota_bytes=None)

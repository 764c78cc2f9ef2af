"""Who may mount which folder, and how."""

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contract.manifest import FolderEntry, MountEntry
from muster.core.launch.folders import folders_to_make, groups, mounts
from muster.core.model.folders import (
    Folder,
    FolderMounter,
    FolderShare,
    check_grantee,
    check_name,
    check_owner,
    in_use,
    mounted_folders,
)
from muster.core.spec.mounts import HOME
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError, SpecError
from tests.modules.agent_code import made_folders
from tests.properties import cheap, dear
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

USERS = ("ada", "bob", "eve")
NAMES = st.from_regex(r"\A\.?[A-Za-z0-9][A-Za-z0-9_.-]{0,61}\Z")
GRANTEES = st.sampled_from([*USERS, "@vision", "@default"])


def made(name: str = "data", owner: str = "ada", *shares: FolderShare, **values: Any) -> Folder:
    key = f"{zlib.crc32(f'{owner}/{name}'.encode()):08x}"
    return Folder(f"{key}-0000-4000-8000-000000000000", owner, name, NOW, shares=shares, **values)


def mounting(*folders: str, **values: Any) -> SessionSpec:
    return SessionSpec.model_validate({"mounts": folders, **values})


@st.composite
def known_folders(draw) -> list[Folder]:
    keys = draw(st.lists(st.tuples(st.sampled_from(USERS), st.sampled_from(["data", "x", ".local"])), unique=True))
    shares = st.lists(
        st.builds(FolderShare, GRANTEES, st.booleans()), max_size=3, unique_by=lambda share: share.grantee
    )
    return [made(name, owner, *draw(shares)) for owner, name in keys]


@dear
@given(
    known_folders(),
    st.sampled_from(USERS),
    st.sampled_from(["data", "x", "ada/data", "bob/data", "eve/x", "other", "ada/data/deep"]),
    st.sampled_from(["", ":ro", ":rw"]),
    st.sampled_from(["default", "vision"]),
)
def test_users_mount_only_their_own_and_shared_folders_and_write_to_no_read_only_one(
    known, user, reference, mode, project
):
    spec = mounting(reference + mode, project=project)
    try:
        found = mounted_folders(spec, user, known)
    except SpecError:
        return
    by_id = {folder.id: folder for folder in known}
    for mounted in found:
        read_only = by_id[mounted.folder_id].read_only_for(user, project)
        assert read_only is not None
        assert mounted.read_only or not read_only
        assert not (mode == ":ro" and mounted.target == spec.mounts[0].target and not mounted.read_only)
    assert len({mounted.target for mounted in found}) == len(found)


def test_without_a_mode_the_share_decides():
    known = [
        made("data", "ada", FolderShare("bob", read_only=True)),
        made("x", "ada", FolderShare("bob", read_only=False)),
    ]
    found = mounted_folders(mounting("data", "ada/x:/x"), "bob", known)
    assert [(m.name, m.target, m.read_only) for m in found] == [("data", f"{HOME}/data", True), ("x", "/x", False)]
    with pytest.raises(SpecError, match=r"mounts\[0\].folder: folder ada/data is shared with bob read-only; .*:ro"):
        mounted_folders(mounting("data:rw"), "bob", known)


def test_the_wider_of_a_users_and_a_projects_share_holds():
    folder = made("data", "ada", FolderShare("bob", read_only=True), FolderShare("@vision", read_only=False))
    assert folder.read_only_for("bob", "default") is True
    assert folder.read_only_for("bob", "vision") is False
    assert folder.read_only_for("eve", "default") is None


def test_an_own_folder_goes_before_a_shared_one_and_two_shared_ones_are_ambiguous():
    everybody = FolderShare("@default", read_only=True)
    hers, his = made("data", "ada", everybody), made("data", "bob", everybody)
    assert [m.owner for m in mounted_folders(mounting("data"), "bob", [hers, his])] == ["bob"]
    with pytest.raises(SpecError, match="several folders 'data' are shared with eve; name one of ada/data, bob/data"):
        mounted_folders(mounting("data"), "eve", [hers, his])


def test_a_mount_that_names_no_folder_is_a_plain_directory():
    assert mounted_folders(mounting("datasets", "ada/data/deep", "sets/mnist"), "ada", [made()]) == ()


@pytest.mark.parametrize("reference", [".muster", ".muster/folders/ada/data-12345678", "./.muster/trash"])
def test_nobody_spells_the_path_of_a_folder(reference):
    with pytest.raises(SpecError, match="is where folders with an owner are kept"):
        mounted_folders(mounting(reference), "ada", [made()])


def test_a_folder_with_a_dot_is_in_its_owners_sessions_but_where_the_spec_has_something_else():
    known = [made(".local"), made(".cache", "ada", FolderShare("bob", read_only=False))]
    assert [m.target for m in mounted_folders(mounting(), "ada", known)] == [f"{HOME}/.cache", f"{HOME}/.local"]
    assert mounted_folders(mounting(), "bob", known) == ()
    assert mounted_folders(mounting(dot_folders=False), "ada", known) == ()
    (mine, cache) = mounted_folders(mounting(".local:ro", "sets:/data"), "ada", known)
    assert (mine.target, mine.read_only, cache.name) == (f"{HOME}/.local", True, ".cache")


@cheap
@given(NAMES, st.uuids())
def test_a_folders_path_is_one_that_agents_accept(name, key):
    check_name(name)
    folder = Folder(str(key), "ada", name, NOW)
    assert made_folders.PATH.fullmatch(folder.path)
    assert 1 << 30 <= folder.number < 1 << 31


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a b", "x" * 64, "é", "a\n"])
def test_wrong_names_are_refused(name):
    with pytest.raises(BadInputError, match="is not a folder's name"):
        check_name(name)
    with pytest.raises(BadInputError):
        check_owner(f".{name}")


def test_a_folder_is_shared_with_another_user_or_a_project_only():
    check_grantee("bob", "ada")
    check_grantee("@vision", "ada")
    for nobody in ("ada", "@", " ", "", " bob", "@@vision", "@ vision", "b\x00b", "x" * 256):
        with pytest.raises(BadInputError, match=r"^WHOM: "):
            check_grantee(nobody, "ada")


def test_sessions_that_mount_a_folder_are_named_but_not_all_of_many():
    users = [FolderMounter(f"s{number}", "ada") for number in range(8)]
    assert in_use(made(), []) == ""
    assert in_use(made(), users) == "folder data is in use by s0, s1, s2, s3, s4 and 3 others; end them first"


def test_a_manifest_has_folders_at_their_places_made_for_their_owners():
    known = [made("data", "bob", FolderShare("ada", read_only=True), quota_bytes=1 << 30), made(".local")]
    requested = ["data", "sets/mnist:/sets:ro"]
    session = make_session(1, mounts=requested, folders=mounted_folders(mounting(*requested), "ada", known))
    uid_of = {"ada": 4711, "bob": 4712}.__getitem__
    bobs, local = known
    assert mounts(session) == (
        MountEntry(folder="sets/mnist", target="/sets", read_only=True, owned=False),
        MountEntry(folder=bobs.path, target=f"{HOME}/data", read_only=True, owned=True),
        MountEntry(folder=local.path, target=f"{HOME}/.local", read_only=False, owned=True),
    )
    assert folders_to_make(session, uid_of) == (
        FolderEntry(path=bobs.path, uid=4712, number=bobs.number, quota_bytes=1 << 30),
        FolderEntry(path=local.path, uid=4711, number=local.number, quota_bytes=None),
    )
    assert groups(session, uid_of) == (bobs.number,)
    assert groups(session, lambda _owner: 1000) == ()

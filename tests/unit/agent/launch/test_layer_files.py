"""An account's files in a container's layer: as the engine would unpack them, and nowhere else."""

import io
import os
import tarfile

import pytest

from tests.modules.agent_code import layer_files

ME = {"uid": os.getuid(), "gid": os.getgid()}
PLAIN = (0o755, ME["uid"], ME["gid"])


def packed(**entries):
    """Return a tar of these: text for a file, a tuple for a link, None for a directory; `__` in a name is a slash."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.uid, entry.gid, entry.mode = ME["uid"], ME["gid"], 0o640
            if content is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o710
            elif isinstance(content, tuple):
                entry.type, (entry.linkname,) = tarfile.SYMTYPE, content
            else:
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()) if isinstance(content, str) else None)
    return buffer.getvalue()


def mode(path):
    return path.stat().st_mode & 0o7777


def test_directories_on_the_way_are_made_like_the_images(tmp_path):
    folders = {"/etc": (0o2751, ME["uid"], ME["gid"]), "/etc/ssh": PLAIN}
    assert layer_files.unpack(packed(etc__passwd="who", etc__ssh__config="how"), tmp_path, folders)
    assert (mode(tmp_path / "etc"), mode(tmp_path / "etc/ssh")) == (0o2751, 0o755)
    assert (tmp_path / "etc/passwd").read_text() == "who"
    assert mode(tmp_path / "etc/passwd") == 0o640


def test_directories_of_the_archive_get_its_modes_also_those_that_the_engine_has_made(tmp_path):
    (tmp_path / "home/ada").mkdir(parents=True)
    archive = packed(home__ada=None, home__ada__ssh=None, home__ada__ssh__key=("/run/key",))
    assert layer_files.unpack(archive, tmp_path, {"/home": PLAIN})
    assert (mode(tmp_path / "home/ada"), mode(tmp_path / "home/ada/ssh")) == (0o710, 0o710)
    assert (tmp_path / "home/ada/ssh/key").readlink().as_posix() == "/run/key"


@pytest.mark.parametrize("name", ["var__file", "etc__odd__file", "..__file", "etc__..__file", "etc__.."])
def test_without_knowing_a_directory_nothing_is_written(tmp_path, name):
    layer = tmp_path / "layer"
    layer.mkdir()
    assert not layer_files.unpack(packed(**{"etc__passwd": "who", name: "what"}), layer, {"/etc": PLAIN})
    assert list(tmp_path.rglob("*")) == [layer]


def test_a_link_in_the_layer_is_replaced_and_none_is_followed(tmp_path):
    layer, outside = tmp_path / "layer", tmp_path / "outside"
    layer.mkdir()
    outside.mkdir()
    (outside / "passwd").write_text("theirs")
    (layer / "passwd").symlink_to(outside / "passwd")
    assert layer_files.unpack(packed(passwd="ours"), layer, {})
    assert (layer / "passwd").read_text() == "ours"
    (layer / "etc").symlink_to(outside)
    with pytest.raises(OSError, match="etc"):
        layer_files.unpack(packed(etc__passwd="ours"), layer, {"/etc": PLAIN})
    assert (outside / "passwd").read_text() == "theirs"


def container(layer, driver="overlay2", state="created"):
    return {"GraphDriver": {"Name": driver, "Data": {"UpperDir": str(layer)}}, "State": {"Status": state}}


def test_only_the_layer_of_an_overlay2_that_has_not_begun_and_is_on_this_host_is_written(tmp_path):
    assert layer_files.layer_of(container(tmp_path)) == tmp_path
    assert layer_files.layer_of(container(tmp_path, state="running")) is None
    assert layer_files.layer_of(container(tmp_path, driver="fuse-overlayfs")) is None
    assert layer_files.layer_of(container(tmp_path / "elsewhere")) is None
    assert layer_files.layer_of({**container(tmp_path), "GraphDriver": None}) is None

"""A kernel answers `muster cp` with an archive that would write outside of DST, as root on the control node."""

import io
import os
import socket
import stat
import struct
import tarfile
import threading
from random import Random
from typing import Any

import pytest

from muster.engine.copying import CopyFailedError, get
from muster.engine.tar_stream import MalformedTarError, tar_entries
from tests.hostile.tars import TREE, Trap, archive, hostile_tar, member
from tests.unit.engine.test_copying import container_that_answers, frame

DIR, LINK, HARD, CHAR = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE


@pytest.fixture
def trap(tmp_path) -> Trap:
    return Trap(tmp_path)


def file(name: str, content: bytes = b"evil", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, mode=mode), content


ATTACKS: dict[str, list[Any]] = {
    "a name that goes up": [file("tree/../mine"), file("tree/../../outside/secret"), file("../mine")],
    "an absolute name": [file("/tmp/evil"), file("/tree/evil")],
    "another tree": [file("mine"), file("away/secret"), file("dst/mine")],
    "a link, then through it": [
        *(member("tree", DIR), member("tree/link", LINK, "../../outside"), file("tree/link/secret")),
    ],
    "a link as the tree": [member("tree", LINK, "../outside"), file("tree/secret")],
    "a link in the place of a directory": [
        *(member("tree/d", DIR), member("tree/d", LINK, "../../outside"), file("tree/d/secret")),
    ],
    "a link to a link that goes up from elsewhere": [
        *(
            member("tree/a/b/c", DIR),
            member("tree/a/b/c/up", LINK, "../../.."),
            member("tree/out", LINK, "a/b/c/up/.."),
        ),
        file("tree/out/mine"),
    ],
    "CVE-2025-4517: a path that the library takes for shorter": [
        *(member("tree/" + "d" * 247, DIR), member("tree/a", LINK, "d" * 247)),
        *(
            member("tree/" + "/".join(["a"] * 60), DIR),
            member("tree/escape", LINK, "/".join(["a"] * 60) + "/../.." * 9),
        ),
        file("tree/escape/mine"),
    ],
    "a hard link to a file from outside": [
        *(member("tree/x", HARD, "../outside/secret"), member("tree/y", HARD, "/etc/passwd"), file("tree/x")),
    ],
    "a hard link to what was in the copy before": [member("tree/x", HARD, "tree/old")],
    "a hard link through a link": [
        *(member("tree/l", LINK, "../../outside"), member("tree/x", HARD, "tree/l/secret"), file("tree/x")),
    ],
    "a hard link to a link": [member("tree/l", LINK, "../mine"), member("tree/x", HARD, "tree/l"), file("tree/x")],
    "links away": [
        *(member("tree/1", LINK, "/etc/passwd"), member("tree/2", LINK, ".."), member("tree/3", LINK, "../mine")),
        *(member("tree/4", LINK, "a/../../mine"), member("tree/5", LINK, "")),
    ],
    "devices": [member("tree/null", CHAR), member("tree/disk", tarfile.BLKTYPE), member("tree/p", tarfile.FIFOTYPE)],
    "rights": [file("tree/su", mode=0o7777), member("tree/d", DIR, mode=0o7777), file("tree/none", mode=0)],
    "a file in the place of a directory": [member("tree/d", DIR), file("tree/d"), file("tree/d/x"), file("tree/d/x/y")],
    "names without end": [file("tree/" + "x" * 300), file("tree/" + "d/" * 5000 + "f"), file("tree" + "/" * 3000)],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_outside_of_the_copy_changes(trap, attack):
    trap.spring(archive(*ATTACKS[attack]))
    assert trap.harm() == []


def test_links_in_the_destination_are_not_followed(trap):
    trap.copy.mkdir()
    (trap.copy / "away").symlink_to("../../outside")
    left_out = trap.spring(archive(file("tree/away/secret"), file("tree/fine", b"yes")))
    assert left_out == ["tree/away/secret"]
    assert (trap.base / "outside" / "secret").read_text() == "secret"
    assert (trap.copy / "fine").read_text() == "yes"


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(trap):
    trap.copy.mkdir()
    (trap.copy / "note").symlink_to("../../outside/secret")
    assert trap.spring(archive(file("tree/note", b"yes"))) == []
    assert not (trap.copy / "note").is_symlink()
    assert trap.harm() == []


def test_an_honest_tree_arrives_whole(trap):
    content = os.urandom(700_000)
    honest = archive(
        *(member("./tree", DIR), member("./tree/deep", DIR), file("./tree/deep/data", content, mode=0o750)),
        *(member("./tree/link", LINK, "deep/data"), member("./tree/deep/up", LINK, "../deep")),
        *(
            member("./tree/same", HARD, "./tree/deep/data"),
            file("./tree/" + "n" * 200, b"long"),
            file("./tree/empty", b""),
        ),
    )
    for tar_format in (
        honest,
        archive(member("./tree", DIR), file("./tree/" + "n" * 200), tar_format=tarfile.GNU_FORMAT),
    ):
        assert trap.spring(tar_format) == []
    copy = trap.copy
    assert (copy / "deep" / "data").read_bytes() == (copy / "link").read_bytes() == content
    assert stat.S_IMODE((copy / "deep" / "data").stat().st_mode) == 0o750
    assert (copy / "same").stat().st_nlink == 2
    assert (str((copy / "link").readlink()), str((copy / "deep" / "up").readlink())) == ("deep/data", "../deep")
    assert (copy / ("n" * 200)).read_bytes() == b"evil"
    assert trap.harm() == []


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"x" * 512,
        archive(file("tree/a", b"x" * 5000))[:1024],
        archive(file("tree/" + "n" * 200))[:1024],
        tarfile.TarInfo("a").tobuf()[:124] + b"\xff" * 12 + tarfile.TarInfo("a").tobuf()[136:],
    ],
)
def test_a_stream_that_is_no_archive_is_refused(data):
    with pytest.raises(MalformedTarError) as refused:
        for _entry, _content in tar_entries(io.BytesIO(data).read):
            pass
    assert str(refused.value).isprintable()


def test_a_header_without_end_is_not_kept_in_memory():
    huge = tarfile.TarInfo("././@LongLink")
    huge.type, huge.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    sizes: list[int] = []

    def read(size: int) -> bytes:
        sizes.append(size)
        return huge.tobuf(tarfile.GNU_FORMAT) if len(sizes) == 1 else b"x" * size

    with pytest.raises(MalformedTarError, match="a header is too large"):
        next(tar_entries(read))
    assert len(sizes) == 1


def test_a_stream_that_never_ends_as_no_archive_is_left(tmp_path):
    ours, engines = socket.socketpair()

    def answer() -> None:
        try:
            while True:
                engines.sendall(struct.pack(">BxxxL", 1, 4096) + b"x" * 4096)
        except OSError:
            engines.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(CopyFailedError, match="its answer is no tar archive: a header"):
        get(container_that_answers(ours), "/", TREE, tmp_path / "copy", lambda _: None)
    ours.close()
    thread.join()
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_fails_is_quoted_without_what_would_change_a_terminal(tmp_path):
    ours, engines = socket.socketpair()
    engines.sendall(frame(2, b"tar: \x1b[2Jno\xe2\x80\xaesuch file\n"))
    engines.close()
    with pytest.raises(CopyFailedError) as refused:
        get(container_that_answers(ours, exit_code=1), "/", TREE, tmp_path / "copy", lambda _: None)
    assert str(refused.value).isprintable()


def test_two_hundred_random_archives_do_no_harm(tmp_path):
    for seed in range(200):
        directory = tmp_path / str(seed)
        directory.mkdir()
        assert Trap(directory).sprung(hostile_tar(Random(seed))) == [], f"seed {seed}"

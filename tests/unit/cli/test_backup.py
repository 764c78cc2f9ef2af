"""`muster backup` and `muster restore` as a person uses them; what they keep is in tests/contract/database."""

import shutil

import pytest

from muster.core.lifecycle.adoption import Adoption
from tests.command_line import muster, submitted, write_settings


def test_a_backup_brings_a_lost_state_directory_back(state_dir, tmp_path):
    submitted("--name", "train")
    taken = muster("backup", str(tmp_path / "b.tar.gz"))
    assert (taken.code, taken.err) == (0, "")
    assert taken.out.startswith("backed up the sqlite database (migration ")
    shutil.rmtree(state_dir)
    done = muster("restore", str(tmp_path / "b.tar.gz"))
    assert (done.code, done.err) == (0, "")
    assert "1 pending sessions are held unless they run; `muster release SESSION` lets one start" in done.out
    assert muster("ls").out.splitlines()[1].split()[1] == "train"
    assert muster("release", "train").out == "train is PENDING\n"


def test_both_answer_programs_with_json(state_dir, tmp_path):
    submitted("--name", "train")
    file = tmp_path / "b"
    taken = muster("backup", str(file), "--json").json
    assert (taken["file"], taken["size_bytes"], taken["keys"]) == (
        *(str(file), file.stat().st_size),
        ["id_ed25519", "id_ed25519.pub"],
    )
    done = muster("restore", str(file), "--json", "--force", "--no-hold").json
    assert (done["sessions"], done["held"], done["taken_at"]) == (1, 0, taken["taken_at"])
    assert done["replaced"].startswith(str(state_dir / "replaced-"))
    assert muster("ls", "--json").json[0]["held_by"] is None


def test_a_refusal_has_exit_code_2_and_one_line(tmp_path):
    submitted("--name", "train")
    (tmp_path / "there").write_text("x")
    for arguments in (
        ("backup", str(tmp_path / "there")),
        ("backup", str(tmp_path)),
        ("restore", str(tmp_path / "nosuch")),
        ("restore", str(tmp_path / "there"), "--force"),
    ):
        answer = muster(*arguments)
        assert answer.code == 2, answer
        assert answer.out == ""
    assert muster("backup", str(tmp_path / "b")).code == 0
    refused = muster("restore", str(tmp_path / "b"))
    assert (refused.code, len(refused.errors)) == (2, 1)
    assert "give --force" in refused.err


@pytest.mark.parametrize("flags", [(), ("--no-hold",)])
def test_a_database_that_was_put_back_by_other_means_is_one_that_was_restored(store, flags):
    submitted("--name", "train")
    done = muster("restore", "--in-place", *flags)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("took the database that is there for a restored one, with 1 sessions")
    assert store.queue.adoption() == Adoption(holds=not flags)
    assert muster("ls", "--json").json[0]["held_by"] == (None if flags else "muster restore")


@pytest.mark.parametrize("arguments", [(), ("there", "--in-place")])
def test_what_to_restore_is_said_once(arguments):
    refused = muster("restore", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert "give either FILE or --in-place" in refused.err


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    answer = muster("backup", str(tmp_path / "nosuch" / "b"))
    assert (answer.code, answer.err) == (
        1,
        f"muster: {tmp_path}/nosuch/b cannot be written: No such file or directory; make its directory first\n",
    )


def test_they_need_the_control_node():
    answer = muster("--server", "http://127.0.0.1:1", "backup", "x")
    assert answer.code == 2
    assert "needs the control node" in answer.err


def test_a_backup_of_another_cluster_is_refused(tmp_path, state_dir):
    assert muster("backup", str(tmp_path / "b")).code == 0
    shutil.rmtree(state_dir)
    write_settings(tmp_path, {"cluster": "lab"})
    assert muster("restore", str(tmp_path / "b")).code == 2
    assert not (state_dir / "muster.db").exists()

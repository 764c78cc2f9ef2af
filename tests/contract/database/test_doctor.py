"""What `muster doctor` tells of the database: where it is, and nothing that opens it; and what may be lost of it."""

import sqlalchemy as sa

from tests.command_line import muster, write_settings


def test_doctor_names_the_database_without_its_password(url, tmp_path, monkeypatch):
    parsed = sa.make_url(url)
    database = parsed.set(password="s3cret") if parsed.get_backend_name() == "postgresql" else parsed
    write_settings(tmp_path, {"database": database.render_as_string(hide_password=False)})
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.yml"))
    for answer in (muster("doctor"), muster("doctor", "--json")):
        assert str(parsed.database) in answer.out
        assert "s3cret" not in answer.out


def test_doctor_tells_of_a_server_that_loses_commits_in_a_crash(postgresql_url, tmp_path, monkeypatch):
    write_settings(tmp_path, {"database": postgresql_url})
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.yml"))
    # As the server of these tests is.
    assert (
        "FAIL  database: commits: after a crash of its server the newest may be lost, and sessions run twice:"
        " fsync, synchronous_commit = off"
    ) in muster("doctor").out


def test_doctor_has_nothing_to_say_of_commits_in_a_file(tmp_path, monkeypatch):
    write_settings(tmp_path, {"database": f"sqlite:///{tmp_path / 'muster.db'}"})
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.yml"))
    said = muster("doctor").out
    assert "ok    database: sqlite" in said
    assert "commits" not in said

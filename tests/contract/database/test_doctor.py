"""What `muster doctor` tells of the database: where it is, and nothing that opens it."""

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

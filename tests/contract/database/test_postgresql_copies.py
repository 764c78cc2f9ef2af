"""Backups of PostgreSQL: its own programs copy the database, and are told no secret that others can read."""

import os
from pathlib import Path

import pytest

from muster.core.values.errors import MusterError
from muster.service.backup import back_up, restore
from muster.store.database import copies
from tests.contract.database.test_backup import content, settings_of
from tests.strategies.sessions import make_session


def test_a_program_of_postgresql_that_is_missing_is_named(server, migrated_database, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MusterError, match="pg_dump is not installed; install PostgreSQL's client"):
        back_up(settings_of(server.url(migrated_database), tmp_path / "here"), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_password_goes_to_postgresql_by_the_environment_only(server, migrated_database, tmp_path, monkeypatch):
    log = tmp_path / "log"
    program = tmp_path / "pg_dump"
    program.write_text(f'#!/bin/sh\necho "$@" >{log}\necho "$PGPASSWORD" >>{log}\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    url = server.url(migrated_database).replace("postgres@", "postgres:hidden@")
    with pytest.raises(MusterError, match="pg_dump failed: exit code 1"):
        back_up(settings_of(url, tmp_path / "here"), tmp_path / "b")
    arguments, password = log.read_text().splitlines()
    assert "hidden" not in arguments
    assert password == "hidden"


def test_a_keys_password_goes_to_postgresql_by_a_file_of_ours_only(server, migrated_database, tmp_path, monkeypatch):
    log = tmp_path / "log"
    program = tmp_path / "pg_dump"
    program.write_text(
        f'#!/bin/sh\necho "$@" >{log}\ncat "$PGSERVICEFILE" >>{log}\nls -ld "${{PGSERVICEFILE%/*}}" >>{log}\nexit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    url = server.url(migrated_database)
    url += ("&" if "?" in url else "?") + "sslpassword=hidden%3D1"
    with pytest.raises(MusterError, match="pg_dump failed: exit code 1"):
        back_up(settings_of(url, tmp_path / "here"), tmp_path / "b")
    arguments, section, secret, directory = log.read_text().splitlines()
    assert "hidden" not in arguments
    assert "service=muster" in arguments
    assert (section, secret, directory.split()[0]) == ("[muster]", "sslpassword=hidden=1", "drwx------")
    assert not Path(directory.split()[-1]).exists()


def test_a_key_with_a_password_is_no_obstacle_to_a_copy(postgresql_url, tmp_path, open_store):
    open_store(postgresql_url).add([make_session(1)])
    parameter = ("&" if "?" in postgresql_url else "?") + "sslpassword=hidden"
    copies.copies_of(postgresql_url + parameter).save(tmp_path / "dump.sql")
    assert "COPY public.sessions" in (tmp_path / "dump.sql").read_text(encoding="utf-8")


def test_tables_in_another_schema_are_backed_up_and_restored(server, tmp_path, open_store):
    def url_of_new() -> str:
        name = server.new_database()
        server.run_in(name, "CREATE SCHEMA apart")
        return f"{server.url(name)}?options=-c%20search_path%3Dapart"

    one, other = url_of_new(), url_of_new()
    open_store(one).add([make_session(1)])
    back_up(settings_of(one, tmp_path / "here"), tmp_path / "b")
    there = settings_of(other, tmp_path / "there")
    for force in (False, True):
        assert restore(there, tmp_path / "b", force=force).sessions == 1


def test_a_restore_that_fails_half_way_leaves_postgresql_as_it_was(postgresql_url, tmp_path, open_store):
    open_store(postgresql_url).add([make_session(1)])
    before = content(postgresql_url)
    copy = copies.copies_of(postgresql_url)
    copy.save(tmp_path / "dump.sql")
    with (tmp_path / "dump.sql").open("a") as file:
        file.write("SELECT nonsense;\n")
    with pytest.raises(MusterError, match=r"psql failed: .*nonsense"):
        copy.replace_by(tmp_path / "dump.sql", tmp_path / "aside", ())
    assert content(postgresql_url) == before

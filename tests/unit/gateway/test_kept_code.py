"""What an agent is sent: the name of a module's sources, which stands for what they hold."""

import base64
import io
import re
import zipfile

import pytest

from muster.ansible_gateway.kept_code import by_name, name_of, title, with_sources

SOURCE = "word = 'hello'  # " + "x" * 1000


def packed(source: str = SOURCE, year: int = 2026) -> bytes:
    """Return sources, packed in a year."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        file.writestr(zipfile.ZipInfo("parts.py", (year, 1, 1, 0, 0, 0)), source)
    return written.getvalue()


def program(sources: bytes) -> bytes:
    """Return a program such as Ansible sends."""
    return f"main(\n    params='a secret',\n    zip_data='{base64.b64encode(sources).decode()}',\n)\n".encode()


def no_sources(name: str) -> bytes:
    pytest.fail(f"the program has the sources {name} itself")


def named(sent: bytes) -> str:
    found = re.search(rb"^codes = read\('(\w+)'\)$", sent, re.MULTILINE)
    assert found is not None
    return found[1].decode()


def test_sources_that_are_packed_again_keep_their_name():
    assert named(by_name(program(packed(year=2026)))) == named(by_name(program(packed(year=2027))))


def test_other_sources_have_another_name():
    assert named(by_name(program(packed()))) != named(by_name(program(packed(SOURCE.replace("hello", "howdy")))))


def test_only_the_second_program_has_the_sources_and_both_have_the_arguments():
    first, second = by_name(program(packed())), with_sources(program(packed()), no_sources)
    assert len(second) - len(first) > len(SOURCE)
    assert b"a secret" in first
    assert b"a secret" in second


def test_a_title_is_sent_as_what_it_stands_for():
    sources = packed()
    known = {name_of(sources): sources}
    titled = program(title(name_of(sources)))
    assert by_name(titled) == by_name(program(sources))
    assert with_sources(titled, known.__getitem__) == with_sources(program(sources), no_sources)


def test_a_program_without_sources_is_refused():
    with pytest.raises(ValueError, match="no sources"):
        by_name(b"echo hello")

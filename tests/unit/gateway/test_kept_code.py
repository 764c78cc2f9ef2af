"""What an agent is sent: the name of a module's sources, which stands for what they hold."""

import base64
import io
import re
import zipfile

import pytest

from muster.ansible_gateway.kept_code import by_name, with_sources

SOURCE = "word = 'hello'  # " + "x" * 1000


def program(source: str = SOURCE, year: int = 2026) -> bytes:
    """Return a program such as Ansible sends, packed in a year."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as packed:
        packed.writestr(zipfile.ZipInfo("parts.py", (year, 1, 1, 0, 0, 0)), source)
    sources = base64.b64encode(written.getvalue()).decode()
    return f"main(\n    params='a secret',\n    zip_data='{sources}',\n)\n".encode()


def named(sent: bytes) -> str:
    found = re.search(rb"^codes = read\('(\w+)'\)$", sent, re.MULTILINE)
    assert found is not None
    return found[1].decode()


def test_sources_that_are_packed_again_keep_their_name():
    assert named(by_name(program(year=2026))) == named(by_name(program(year=2027)))


def test_other_sources_have_another_name():
    assert named(by_name(program())) != named(by_name(program(SOURCE.replace("hello", "howdy"))))


def test_only_the_second_program_has_the_sources_and_both_have_the_arguments():
    first, second = by_name(program()), with_sources(program())
    assert len(second) - len(first) > len(SOURCE)
    assert b"a secret" in first
    assert b"a secret" in second


def test_a_program_without_sources_is_refused():
    with pytest.raises(ValueError, match="no sources"):
        by_name(b"echo hello")

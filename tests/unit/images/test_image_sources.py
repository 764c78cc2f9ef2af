"""An image's packages come from the host's own mirrors, with the security updates of its release."""

import runpy

import pytest

MAKER = "roles/images/files/make_image.py"
BOOKWORM = """\
Debian|http://mirror.example/debian/|bookworm|main
Debian|http://mirror.example/debian/|bookworm|contrib
Debian|http://mirror.example/debian/|bookworm-updates|main
Debian|http://mirror.example/debian/|bookworm-backports|main
Debian|http://mirror.example/debian-security/|bookworm-security|main
Docker|https://download.example/linux/debian|bookworm|stable
"""


def sources(suite: str, known: str = BOOKWORM, release: str = "bookworm") -> list[str]:
    """Return URI, release and component of each source that the program chooses."""
    functions = runpy.run_path(MAKER)
    choose = functions["sources"]
    choose.__globals__["output_of"] = lambda *_: known
    return [line.partition("] ")[2].removeprefix("http://mirror.example/") for line in choose(suite, release)]


def test_the_hosts_own_release_comes_from_all_its_sources_but_backports_and_strangers():
    assert sources("bookworm") == [
        "debian/ bookworm main",
        "debian/ bookworm contrib",
        "debian/ bookworm-updates main",
        "debian-security/ bookworm-security main",
    ]


def test_another_release_has_its_security_updates_too():
    assert sources("trixie") == [
        "debian/ trixie main",
        "debian/ trixie-updates main",
        "debian-security/ trixie-security main",
    ]


@pytest.mark.parametrize("suite", ["sid", "unstable"])
def test_a_rolling_release_has_nothing_beside_it(suite):
    assert sources(suite) == [f"debian/ {suite} main"]


def test_a_host_whose_release_has_no_name_still_has_a_mirror():
    assert sources("trixie", release="") == ["debian/ trixie main"]


def test_a_host_without_a_source_of_its_distribution_is_refused():
    with pytest.raises(SystemExit, match="knows no Debian or Ubuntu source"):
        sources("trixie", known="")

"""`docs/proxy.md`: apt and pip fetch through a proxy that inspects TLS, with the files that the page shows."""

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.servers.proxy_page import HOST, PROXY_OF_THE_PAGE, Proxy, block, certificate


def wheel() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("thing.py", "")
        files.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        files.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files.writestr("thing-1.dist-info/RECORD", "")
    return archive.getvalue()


def release(packages: bytes) -> bytes:
    digest = hashlib.sha256(packages).hexdigest()
    date = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} UTC"
    return f"Suite: site\nDate: {date}\nSHA256:\n {digest} {len(packages)} Packages\n".encode()


PACKAGES = b"Package: thing\nVersion: 1\nArchitecture: all\nMaintainer: Us\nFilename: ./thing.deb\nSize: 1\n\n"
FILES = {
    "/simple/thing/": b'<a href="/thing-1-py3-none-any.whl">thing-1-py3-none-any.whl</a>',
    "/thing-1-py3-none-any.whl": wheel(),
    "/debian/./Packages": PACKAGES,
    "/debian/Packages": PACKAGES,
    "/debian/./Release": release(PACKAGES),
    "/debian/Release": release(PACKAGES),
}


@pytest.fixture
def authority(tmp_path) -> tuple[Path, Path]:
    return certificate(tmp_path)


@pytest.fixture
def proxy(authority) -> Iterator[Proxy]:
    made = Proxy(authority[1], {path: ("text/html", content) for path, content in FILES.items()})
    yield made
    made.close()


def environment(**values: object) -> dict[str, str]:
    others = ("PIP_", "SSL_", "REQUESTS_", "CURL_")
    kept = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith(others)}
    return {**kept, **{name: str(value) for name, value in values.items()}}


@pytest.mark.parametrize("trusts", [True, False])
def test_pip_fetches_with_the_pages_configuration(authority, proxy, tmp_path, trusts):
    text = block("ini", "[global]").replace(PROXY_OF_THE_PAGE, proxy.url)
    store = str(authority[0]) if trusts else "/etc/ssl/certs/ca-certificates.crt"
    config = tmp_path / "pip.conf"
    config.write_text(text.replace("/etc/ssl/certs/ca-certificates.crt", store))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--retries", "0", "-d", tmp_path / "wheels",
         "--index-url", f"https://{HOST}/simple", "thing"],
        env=environment(PIP_CONFIG_FILE=config), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) is trusts, done.stderr
    assert proxy.tunnels[0] == f"{HOST}:443"
    assert [path.name for path in (tmp_path / "wheels").glob("*")] == ["thing-1-py3-none-any.whl"] * trusts


@pytest.mark.parametrize("trusts", [True, False])
def test_apt_fetches_with_the_pages_configuration(authority, proxy, tmp_path, trusts):
    text = block("apt", "Acquire").replace(PROXY_OF_THE_PAGE, proxy.url)
    config = tmp_path / "80proxy"
    # The host's own trust store is left alone: the role site_ca puts the authority there.
    config.write_text(text + (f'Acquire::https::CaInfo "{authority[0]}";\n' if trusts else ""))
    lists, sources = tmp_path / "lists", tmp_path / "sources.list"
    (lists / "partial").mkdir(parents=True)
    sources.write_text(f"deb [trusted=yes] https://{HOST}/debian ./\n")
    done = subprocess.run(
        ["apt-get", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Etc::sourcelist={sources}",
         "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=0",
         "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "update"],
        env=environment(APT_CONFIG=config), capture_output=True, text=True, check=False,
    )  # fmt: skip
    fetched = list(lists.glob(f"{HOST}_*_Packages*"))
    assert bool(fetched) is trusts, done.stdout + done.stderr
    assert proxy.tunnels[0] == f"{HOST}:443"

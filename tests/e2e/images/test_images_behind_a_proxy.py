"""`docs/proxy.md`: an engine pulls through a proxy that inspects TLS, with the variables that the page shows."""

import re
from pathlib import Path

import docker
import pytest
from docker.errors import APIError

from tests.e2e.images.registry import content_type, served_image
from tests.engine_host import engine_host
from tests.servers.proxy_page import HOST, PROXY_OF_THE_PAGE, Proxy, block, certificate

PORT = 3128
# As the role site_ca leaves it.
TRUST = 'mount --bind "$1/authority.pem" /etc/ssl/certs/ca-certificates.crt'


@pytest.mark.parametrize("trusts", [True, False])
def test_an_engine_pulls_with_the_pages_configuration(tmp_path: Path, trusts: bool) -> None:
    _, host_certificate = certificate(tmp_path)
    text = block("ini", "[Service]").replace(PROXY_OF_THE_PAGE, f"http://127.0.0.1:{PORT}")
    variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
    image = served_image(docker.from_env().version()["Arch"])
    files = {path: (content_type(path), content) for path, content in image.files.items()}

    def pull() -> None:
        proxy = Proxy(host_certificate, files, PORT)
        engine = docker.DockerClient(base_url="unix:///run/docker.sock")
        try:
            if trusts:
                assert engine.images.pull(f"{HOST}/there", tag="1").id == image.id
            else:
                with pytest.raises(APIError, match="certificate"):
                    engine.images.pull(f"{HOST}/there", tag="1")
            assert set(proxy.tunnels) == {f"{HOST}:443"}
        finally:
            proxy.close()

    with engine_host(tmp_path, prepare=TRUST if trusts else "", environment=variables) as host:
        host.do(pull)

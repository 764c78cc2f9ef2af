"""Canaille, an OpenID Connect provider from PyPI, as a process of its own, and a browser that signs in there.

Run as a program, this file is that process: the provider with the users and the client of a file. It keeps all in
memory, where Canaille takes any unused code of a client for the one that is shown: tests leave none unused.
"""

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
from joserfc.jwk import RSAKey

from tests.modules.agent_code import ROOT

CLIENT, SECRET = "muster", "the-clients-secret"


@dataclass(frozen=True)
class Person:
    """A user of the provider."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def password(self) -> str:
        return f"{self.name}s-password"


def signing_key() -> dict[str, Any]:
    return dict(
        RSAKey.generate_key(2048, parameters={"use": "sig", "alg": "RS256"}, auto_kid=True).as_dict(private=True)
    )


@contextmanager
def running_provider(
    directory: Path, port: int, people: Sequence[Person], redirect_uri: str, keys: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Run the provider at this port of this machine, and yield its issuer."""
    content = {
        "port": port,
        "keys": list(keys),
        "people": [[person.name, person.password, list(person.groups)] for person in people],
        "redirect_uri": redirect_uri,
    }
    file = directory / "provider.json"
    file.write_text(json.dumps(content))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers.oidc_provider", file],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=(directory / "provider.log").open("wb"),
    ) as process:
        try:
            assert process.stdout is not None
            # It says so when it listens, or ends.
            assert process.stdout.readline() == b"listening\n", (directory / "provider.log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def approved(url: str, person: Person) -> str:
    """Sign in at the provider as its pages want it; return where it sends the browser then."""
    with httpx.Client(timeout=60) as browser:
        answer = browser.get(url)
        for field in ("login", "password"):
            answer = _followed(browser, answer)
            found = re.search(r'name="csrf_token"[^>]*value="([^"]+)"', answer.text)
            assert found, answer.text
            values = {"login": person.name, "password": person.password}
            answer = browser.post(answer.url, data={field: values[field], "csrf_token": html.unescape(found[1])})
        return str(_left(browser, answer, url))


def _followed(browser: httpx.Client, answer: httpx.Response) -> httpx.Response:
    while answer.is_redirect:
        answer = browser.get(urljoin(str(answer.url), answer.headers["location"]))
    return answer


def _left(browser: httpx.Client, answer: httpx.Response, url: str) -> httpx.URL:
    """Return the first URL that is not the provider's."""
    while True:
        assert answer.is_redirect, answer.text
        following = httpx.URL(urljoin(str(answer.url), answer.headers["location"]))
        if following.port != httpx.URL(url).port:
            return following
        answer = browser.get(following)


def _serve(file: Path) -> None:
    import asyncio  # noqa: PLC0415 - the process alone needs these

    from asgiref.wsgi import WsgiToAsgi  # noqa: PLC0415
    from canaille import create_app  # noqa: PLC0415
    from canaille.app import models  # noqa: PLC0415
    from canaille.backends import Backend  # noqa: PLC0415
    from hypercorn.asyncio import serve  # noqa: PLC0415
    from hypercorn.config import Config  # noqa: PLC0415

    content = json.loads(file.read_text())
    address = f"127.0.0.1:{content['port']}"
    app = create_app(
        {
            "SECRET_KEY": "the provider's own",
            "SERVER_NAME": address,
            "PREFERRED_URL_SCHEME": "http",
            "CANAILLE": {"DATABASE": "memory", "ENABLE_PASSWORD_COMPROMISSION_CHECK": False},
            "CANAILLE_OIDC": {"ACTIVE_JWKS": content["keys"]},
        }
    )
    with app.app_context():
        people = {}
        for name, password, _ in content["people"]:
            people[name] = models.User(
                user_name=name, display_name=name, family_name=name, emails=[f"{name}@site.example"], password=password
            )
            Backend.instance.save(people[name])
        for group in {group for _, _, groups in content["people"] for group in groups}:
            members = [people[name] for name, _, groups in content["people"] if group in groups]
            Backend.instance.save(models.Group(display_name=group, members=members))
        client = models.Client(
            client_id=CLIENT,
            client_secret=SECRET,
            client_name="Muster",
            # One of a trusted domain, whose users are not asked each time.
            client_uri=content["redirect_uri"],
            redirect_uris=[content["redirect_uri"]],
            scope=["openid", "profile", "groups"],
            grant_types=["authorization_code"],
            response_types=["code"],
            token_endpoint_auth_method="client_secret_basic",
        )
        Backend.instance.save(client)
        client.audience = [client]
        Backend.instance.save(client)
    config = Config()
    config.bind = [address]

    async def run() -> None:
        serving = asyncio.create_task(serve(WsgiToAsgi(app), config))
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", content["port"])
                break
            except OSError:
                await asyncio.sleep(0.05)
        writer.close()
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        await serving

    asyncio.run(run())


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))

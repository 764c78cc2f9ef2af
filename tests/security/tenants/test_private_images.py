"""A user names a private image in every way that the engine understands, and asks registries with the site's keys."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.images.catalog import Catalog
from muster.core.images.choice import Choosing, with_images
from muster.core.images.committed import CommittedImage
from muster.core.images.names import familiar, parse_image_name
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import ImageError, SpecError
from muster.engine import agent_engine
from muster.engine.tunnel import EngineTunnel
from muster.service.images.source import ImageSource
from muster.settings import load_settings
from tests.command_line import write_settings
from tests.hostile.odd_engine import OddEngine, odd_engine
from tests.properties import cheap
from tests.strategies.agents import make_agent

DIGEST = "sha256:" + "ab" * 32
CATALOG = [
    {"name": "train", "reference": "lab/train:2", "users": ["ann"]},
    {"name": "site", "reference": "registry.lab.example/team/site:1", "projects": ["vision"]},
    {"name": "plain", "reference": "registry.lab.example/team/plain:1"},
]
MADE = CommittedImage(
    *("ann/work", "1", "ann"), public=False, message="", parent="", parent_id="", session_id="", session_name="",
    kernel_name="", agent_id="a1", architecture="", created_at=0.0, image_id=DIGEST,
)  # fmt: skip
HELD = ("lab/train:2", "registry.lab.example/team/site:1", "ann/work:1", "debian:12")


def choosing(*, foreign: bool = True, user: str = "bob") -> Choosing:
    versions = (*validated(Catalog, {"images": CATALOG}).versions, MADE.version)
    return Choosing(versions, user, "default", HELD, foreign=foreign)


def refusal(word: str, *, foreign: bool = True) -> str:
    with pytest.raises(SpecError) as refused:
        choosing(foreign=foreign).version(word)
    return str(refused.value)


@pytest.mark.parametrize(
    "word",
    [
        *("lab/train:2", "docker.io/lab/train:2", "index.docker.io/lab/train:2", f"lab/train@{DIGEST}"),
        *(f"index.docker.io/lab/train:2@{DIGEST}", "lab/train:3", "lab/train", "docker.io/lab/train"),
        *("registry.lab.example/team/site:1", "REGISTRY.lab.example/team/site:1"),
        *("registry.lab.example:443/team/site:1", "registry.lab.example/team/site:9", "registry.lab.example/team/site"),
        *(f"registry.lab.example/team/site@{DIGEST}", f"registry.lab.example/team/site:8@{DIGEST}"),
        *("ann/work:1", "docker.io/ann/work:1", "index.docker.io/ann/work:1", f"ann/work@{DIGEST}"),
        *("lab/none:1", "ann/none:1", "ann/work:2", "registry.lab.example/team/none"),
        *(
            DIGEST,
            "ab" * 32,
            f"@{DIGEST}",
            "sha256:abab",
            "lab/train:2@sha256:zz",
            "lab//train:2",
            "lab/../lab/train:2",
        ),
        *("lab/train:2 ", "LAB/train:2/", "lab/Train:2", "http://lab/train:2"),
    ],
)
def test_a_user_without_the_right_gets_no_such_image_for_any_spelling(word):
    line = refusal(word)
    assert line.startswith(f"image: there is no image {word!r} in the catalog for bob in project default; ")


def test_a_name_that_could_be_the_beginning_of_an_id_is_made_a_name():
    """The engine looks for images whose ids begin so."""
    for word in ("abab", "ab" * 20, "0"):
        spec = validated(SessionSpec, {"image": word, "roles": [{"name": "ps", "image": word}]})
        chosen = with_images(spec, choosing(), "plain")
        assert (chosen.image, chosen.roles[0].image) == (f"{word}:latest", f"{word}:latest")


def test_the_refusal_is_the_same_whether_the_image_exists_or_not():
    def words(word: str, *, foreign: bool) -> str:
        return refusal(word, foreign=foreign).replace(word, "WORD")

    pairs = (
        ("lab/train:2", "lab/none:2"),
        ("lab/train:2", "lab/train:4"),
        ("ann/work:1", "ann/none:1"),
        ("registry.lab.example/team/site:1", "registry.lab.example/team/none:1"),
        (f"lab/train@{DIGEST}", f"lab/none@{DIGEST}"),
        (DIGEST, "sha256:" + "cd" * 32),
    )
    for private, missing in (*pairs, ("train", "brain7")):
        assert words(private, foreign=False) == words(missing, foreign=False)
    for private, missing in pairs:
        assert words(private, foreign=True) == words(missing, foreign=True)


def test_a_private_images_name_means_what_it_would_without_that_image():
    """Which names the catalog has is not told to those who may not use them."""
    for word in ("train", "site", "train:2", "brain7"):
        assert choosing().version(word) is None
    assert choosing(user="ann").version("train").reference == "lab/train:2"


def test_users_may_use_public_images_and_their_own():
    assert choosing(user="ann").version("index.docker.io/lab/train:2").reference == "lab/train:2"
    for word in (
        "debian:12",
        "pytorch/pytorch:2",
        f"debian@{DIGEST}",
        "registry.lab.example/team/plain:7",
        "lab.example/train:2",
        "registry.lab.example/train:2",
        "eve/work:1",
    ):
        assert choosing().version(word) is None
    assert choosing(user="ann").version("ann/work:2") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("debian", "debian:latest"),
        ("library/debian", "debian:latest"),
        ("docker.io/debian:12", "debian:12"),
        ("index.docker.io/library/debian", "debian:latest"),
        ("a/b", "a/b:latest"),
        ("a.b/c", "a.b/c:latest"),
        ("localhost/c", "localhost/c:latest"),
        ("host:5000/a/b:1", "host:5000/a/b:1"),
        ("[::1]:5000/a:1", "[::1]:5000/a:1"),
        ("Host/a", "Host/a:latest"),
        (f"a/b:1@{DIGEST}", f"a/b@{DIGEST}"),
        ("docker.io/library/a/b", "library/a/b:latest"),
    ],
)
def test_names_are_read_as_the_engine_reads_them(text, name):
    assert familiar(text) == name


@cheap
@given(st.text(alphabet="ab.:/@-_A0[]", max_size=30))
def test_a_name_means_the_same_once_it_is_written_as_the_engine_does(text):
    name = parse_image_name(text)
    if name is not None:
        again = parse_image_name(name.familiar)
        assert again is not None
        assert (again.familiar, again.repository) == (name.familiar, name.repository)


class TestCredentials:
    """The registry's keys of the control node's user are sent with the engine's pull request, for the agent to use."""

    @pytest.fixture
    def engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        config = tmp_path / "home" / ".docker" / "config.json"
        config.parent.mkdir(parents=True)
        key = base64.b64encode(b"site:password").decode()
        hosts = ("registry.lab.example", "https://index.docker.io/v1/")
        config.write_text(json.dumps({"auths": {host: {"auth": key} for host in hosts}}), encoding="utf-8")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("DOCKER_CONFIG", raising=False)
        with odd_engine(tmp_path) as server:
            monkeypatch.setattr(agent_engine, "_LOCAL_ENGINE", EngineTunnel(f"unix://{server.path}", str))
            yield server

    @pytest.fixture
    def source(self, control_node, tmp_path: Path):
        (tmp_path / "images.yml").write_text(json.dumps({"images": CATALOG}), encoding="utf-8")
        return ImageSource(control_node().store, load_settings(write_settings(tmp_path, {})))

    @pytest.mark.parametrize(
        ("reference", "shown"),
        [
            ("registry.lab.example/team/plain:1", True),
            ("registry.lab.example/team/other:1", False),
            ("registry.lab.example/team/plain:2", False),
            ("lab/train:2", True),
            ("index.docker.io/lab/train:2", True),
            ("lab/other:2", False),
        ],
    )
    def test_credentials_go_only_to_registries_of_the_site(self, engine: OddEngine, source, reference, shown):
        engine.answers = {"GET": (404, b'{"message": "no such image"}')}
        agent = make_agent("a1", inventory={"connection": "local"})
        source(agent, reference, lambda _done, _total: None)
        (sent,) = [headers for path, headers in engine.requests if "/images/create" in path]
        auth = json.loads(base64.urlsafe_b64decode(sent["X-Registry-Auth"] or b"e30="))
        assert (auth.get("password") == "password") is shown
        assert bool(auth) is shown

    @pytest.mark.parametrize(
        "said",
        [
            (404, "manifest for registry.lab.example/team/other:1 not found: manifest unknown: manifest unknown"),
            (404, "pull access denied for lab/other, repository does not exist or may require 'docker login'"),
            (500, 'Head "https://registry.lab.example/v2/team/other/manifests/1": no basic auth credentials'),
            (500, "unauthorized: access to the requested resource is not authorized"),
            (500, "unexpected status from HEAD request to https://registry.lab.example/v2/: 403 Forbidden"),
            (200, "errors: denied: requested access to the resource is denied"),
        ],
    )
    def test_one_that_others_keep_in_a_registry_is_refused_as_one_that_is_not_there(self, engine, source, said):
        status, words = said
        engine.answers = {
            "GET": (404, b'{"message": "no such image"}'),
            "POST": (status, json.dumps({"error" if status == 200 else "message": words}).encode()),
        }
        agent = make_agent("a1", inventory={"connection": "local"})
        name = "registry.lab.example/team/other:1"
        with pytest.raises(ImageError) as refused:
            source(agent, name, lambda _done, _total: None)
        line = f"image {name} cannot be pulled on agent a1: its registry has no such image, or not for everybody"
        assert (str(refused.value), refused.value.permanent) == (line, True)

"""An agent that was broken into gives another agent an image: what its engine saves is the attacker's."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.values.errors import ImageError
from muster.engine import images
from muster.engine.image_archive import CheckedArchive, RefusedArchiveError
from muster.engine.images import ExpectedImage
from tests.hostile.image_archives import SmallImage, archive, chunks, digest, files_of
from tests.properties import cheap
from tests.strategies.agents import make_agent

REFERENCE = "lab/train:2"
MOST = 1 << 20


def taken(data: bytes, image_id: str, reference: str = REFERENCE) -> dict[str, bytes]:
    return files_of(b"".join(CheckedArchive(chunks(data), image_id, reference, MOST)))


def refusal(data: bytes, image_id: str) -> tuple[str, bytes]:
    """Return why it is refused, and what had been passed on by then."""
    passed = b""
    try:
        for chunk in CheckedArchive(chunks(data), image_id, REFERENCE, MOST):
            passed += chunk
    except RefusedArchiveError as refused:
        return str(refused), passed
    pytest.fail("the archive was passed on whole")


def test_the_image_travels_under_the_one_name_that_was_meant():
    image = SmallImage(tags=("muster/default:latest", "lab/train:2", "ann/private:1"))
    files = taken(archive(image.files()), image.id)
    (manifest,) = json.loads(files["manifest.json"])
    assert manifest["RepoTags"] == [REFERENCE]
    assert files[manifest["Config"]] == image.config
    assert [files[name] for name in manifest["Layers"]] == [image.layer]
    assert "repositories" not in files


def test_another_image_in_the_archive_is_none_in_what_is_passed_on():
    image, other = SmallImage(), SmallImage(text=b"evil", tags=("muster/default:latest",))
    files = {**image.files(), "2/layer.tar": other.layer, f"{other.id[7:]}.json": other.config}
    files["manifest.json"] = json.dumps([image.manifest, {**other.manifest, "Layers": ["2/layer.tar"]}]).encode()
    passed = taken(archive(files), image.id)
    (manifest,) = json.loads(passed.pop("manifest.json"))
    assert manifest["RepoTags"] == [REFERENCE]
    # So for engines with containerd's store, which look for nothing else.
    (entry,) = json.loads(passed.pop("index.json"))["manifests"]
    described = json.loads(passed.pop(f"blobs/sha256/{entry['digest'][7:]}"))
    assert described["config"]["digest"] == image.id
    assert [layer["digest"] for layer in described["layers"]] == [digest(image.layer)]
    assert passed.pop("oci-layout")
    # Names in which no engine looks for anything.
    assert all(name.startswith("files/") for name in passed)


def with_another_layer(image: SmallImage) -> bytes:
    return archive({**image.files(), "1/layer.tar": SmallImage(text=b"evil").layer})


def with_another_config(image: SmallImage) -> bytes:
    other = SmallImage(command=("evil",))
    return archive({**image.files(), f"{image.id[7:]}.json": other.config})


def without_its_config(image: SmallImage) -> bytes:
    files = image.files()
    del files[f"{image.id[7:]}.json"]
    return archive(files)


def of_another_blob(image: SmallImage) -> bytes:
    return archive({f"blobs/sha256/{image.id[7:]}": b"{}", **image.files()})


def that_breaks_off(image: SmallImage) -> bytes:
    return archive(image.files())[:2000]


def that_is_none(_: SmallImage) -> bytes:
    return b"<html>" * 1000


def that_is_empty(_: SmallImage) -> bytes:
    return b""


def of_many_files(image: SmallImage) -> bytes:
    # An end to every one of them, without content: 512 bytes each are more than the bound of bytes allows.
    return archive({**image.files(), **{f"x/{number}": b"" for number in range(3000)}})


def that_is_large(image: SmallImage) -> bytes:
    return archive({"0": bytes(2 * MOST), **image.files()})


@pytest.mark.parametrize(
    "said",
    [
        with_another_layer,
        with_another_config,
        without_its_config,
        of_another_blob,
        that_breaks_off,
        that_is_none,
        that_is_empty,
        of_many_files,
        that_is_large,
    ],
)
def test_an_archive_of_another_image_is_refused_before_an_engine_loads_it(said):
    image = SmallImage()
    problem, passed = refusal(said(image), image.id)
    assert problem.startswith(("its archive lacks sha256:", "its file sha256:", "it sends more", "its answer is no"))
    assert problem.isprintable()
    assert b"manifest.json" not in passed
    assert b"index.json" not in passed


def test_an_archive_without_end_is_broken_off():
    def zeroes() -> Iterator[bytes]:
        head = bytearray(archive({"x": b"1"})[:512])
        head[124:136] = b"77777777777\0"
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        yield bytes(head)
        while True:
            yield bytes(1 << 16)

    with pytest.raises(RefusedArchiveError, match="more than image_max_size allows, which is 1M"):
        for _ in CheckedArchive(zeroes(), SmallImage().id, REFERENCE, MOST):
            pass


@pytest.mark.parametrize("rootfs", [None, [], {}, {"diff_ids": None}, {"diff_ids": [{}]}, {"diff_ids": ["\x1b[2J"]}])
def test_a_configuration_that_is_none_is_refused(rootfs):
    config = json.dumps({"rootfs": rootfs}).encode()
    problem, _ = refusal(archive({"c.json": config}), digest(config))
    assert problem.isprintable()


class TestContainerdsImageStore:
    """The image store of containerd, where an image's id is the digest of its manifest, or of an index."""

    @pytest.fixture
    def image(self) -> SmallImage:
        return SmallImage()

    def manifest(self, image: SmallImage) -> bytes:
        layers = [{"digest": digest(image.layer), "size": len(image.layer)}]
        return json.dumps({"schemaVersion": 2, "config": {"digest": image.id}, "layers": layers}).encode()

    def blobs(self, *contents: bytes) -> dict[str, bytes]:
        return {f"blobs/sha256/{digest(content)[7:]}": content for content in contents}

    def test_the_manifest_is_called_as_was_meant_and_nothing_else_is(self, image):
        manifest = self.manifest(image)
        sent = {**self.blobs(manifest, image.config, image.layer), "index.json": b'{"evil": 1}', "manifest.json": b"[]"}
        files = taken(archive(sent), digest(manifest))
        (entry,) = json.loads(files["index.json"])["manifests"]
        assert entry["digest"] == digest(manifest)
        assert entry["size"] == len(manifest)
        assert entry["annotations"]["io.containerd.image.name"] == "docker.io/lab/train:2"
        assert files[f"blobs/sha256/{image.id[7:]}"] == image.config
        assert json.loads(files["oci-layout"])
        # So for engines with a storage driver.
        (listed,) = json.loads(files["manifest.json"])
        assert listed["RepoTags"] == [REFERENCE]
        assert [files[name] for name in (listed["Config"], *listed["Layers"])] == [image.config, image.layer]

    def test_an_index_needs_one_whole_manifest(self, image):
        manifest = self.manifest(image)
        absent = {"digest": digest(b"arm64")}
        index = json.dumps({"manifests": [{"digest": digest(manifest)}, absent]}).encode()
        assert "index.json" in taken(archive(self.blobs(index, manifest, image.config, image.layer)), digest(index))
        for lacking in ((index, manifest, image.config), (index, image.config, image.layer)):
            problem, passed = refusal(archive(self.blobs(*lacking)), digest(index))
            assert problem.startswith("its archive lacks ")
            assert b"index.json" not in passed

    def test_what_an_index_says_of_its_build_is_no_image(self, image):
        manifest = self.manifest(image)
        said = SmallImage(system="unknown")
        statement = self.manifest(said)
        index = json.dumps({"manifests": [{"digest": digest(each)} for each in (statement, manifest)]}).encode()
        contents = (index, manifest, statement, image.config, image.layer, said.config)
        checked = CheckedArchive(chunks(archive(self.blobs(*contents))), digest(index), REFERENCE, MOST)
        (listed,) = json.loads(files_of(b"".join(checked))["manifest.json"])
        assert listed["Config"] == f"blobs/sha256/{image.id[7:]}"
        assert checked.config_id == image.id
        assert checked.ids == {image.id, digest(index)}

    def test_an_index_for_two_systems_is_one_image_for_containerds_engines_alone(self, image):
        other = SmallImage(command=("false",))
        manifests = [self.manifest(each) for each in (image, other)]
        index = json.dumps({"manifests": [{"digest": digest(each)} for each in manifests]}).encode()
        contents = (index, *manifests, image.config, other.config, image.layer)
        checked = CheckedArchive(chunks(archive(self.blobs(*contents))), digest(index), REFERENCE, MOST)
        assert "manifest.json" not in files_of(b"".join(checked))
        assert (checked.config_id, checked.ids) == (None, {digest(index)})

    @pytest.mark.parametrize("said", [b"{}", b"[]", b'{"rootfs": []}', b'{"rootfs": {"diff_ids": []}}', b"x"])
    def test_what_is_no_image_travels_as_it_is(self, image, said):
        layers = [{"digest": digest(image.layer), "size": len(image.layer)}]
        manifest = json.dumps({"config": {"digest": digest(said)}, "layers": layers}).encode()
        files = taken(archive(self.blobs(manifest, said, image.layer)), digest(manifest))
        assert "manifest.json" not in files
        assert "index.json" in files

    @pytest.mark.parametrize("listed", [[{"digest": []}], [{"digest": {}}], [[]], [None], 7, None])
    def test_an_index_of_nonsense_is_refused(self, listed):
        index = json.dumps({"manifests": listed}).encode()
        problem, passed = refusal(archive(self.blobs(index)), digest(index))
        assert problem.isprintable()
        assert b"index.json" not in passed

    def test_an_index_of_itself_ends(self):
        nested = json.dumps({"manifests": []}).encode()
        index = json.dumps({"manifests": [{"digest": digest(nested)}]}).encode()
        problem, _ = refusal(archive(self.blobs(nested, index)), digest(index))
        assert "no image manifest" in problem


@cheap
@given(st.data())
def test_no_changed_byte_makes_another_image(data):
    """Whatever is changed, what is passed on whole is the image itself."""
    image = SmallImage()
    said = bytearray(archive(image.files()))
    for _ in range(data.draw(st.integers(1, 4))):
        said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
    try:
        files = taken(bytes(said), image.id)
    except RefusedArchiveError:
        return
    (manifest,) = json.loads(files["manifest.json"])
    assert digest(files[manifest["Config"]]) == image.id
    assert [digest(files[name]) for name in manifest["Layers"]] == [digest(image.layer)]


@pytest.mark.parametrize(
    ("reference", "image_id"),
    [(f"lab/train@sha256:{'0' * 64}", f"sha256:{'0' * 64}"), (REFERENCE, "lab/train:2"), ("@/../x", "sha256:00")],
)
def test_only_a_tag_and_a_whole_id_can_be_meant(reference, image_id):
    agent = make_agent("a1", inventory={"connection": "local"})
    with pytest.raises(ImageError, match="only a name with a tag can travel"):
        images.copy(agent, agent, reference, ExpectedImage(image_id, MOST), lambda _done, _total: None)

"""The image catalog: what its entries mean, and which image a session gets for a word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.images.catalog import Catalog, shortages
from muster.core.images.choice import Choosing, with_images
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import SpecError
from muster.core.values.slots import Slots
from tests.properties import cheap

PYTORCH = {
    "name": "pytorch",
    "versions": {1.7: "nvcr.io/nvidia/pytorch:20.08-py3", "2.9": "pytorch/pytorch:2.9.1"},
    "default": 2.9,
    "aliases": {"torch": None, "ngc": 1.7},
    "minimum": {"mem": "4G", "cpu": 2},
    "architecture": "amd64",
}
SECRET = {"name": "secret", "reference": "lab/secret:1", "users": ["ann"], "projects": ["vision"]}
PLAIN = {"name": "default", "reference": "muster/default:latest", "aliases": ["base"], "source": {"registry": "x"}}


def catalog(*entries):
    return validated(Catalog, {"images": entries})


def choosing(*entries, user="bob", project="default", held=()):
    return Choosing(catalog(*entries).versions, user, project, held)


def reference(word, *entries, **who):
    version = choosing(*entries, **who).version(word)
    return version.reference if version else word


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("pytorch", "pytorch/pytorch:2.9.1"),
        ("torch", "pytorch/pytorch:2.9.1"),
        ("pytorch:1.7", "nvcr.io/nvidia/pytorch:20.08-py3"),
        ("torch:1.7", "nvcr.io/nvidia/pytorch:20.08-py3"),
        ("ngc", "nvcr.io/nvidia/pytorch:20.08-py3"),
        ("pytorch:2.9", "pytorch/pytorch:2.9.1"),
        ("base", "muster/default:latest"),
        ("default:latest", "muster/default:latest"),
        ("debian:12", "debian:12"),
        ("other/pytorch:9", "other/pytorch:9"),
        ("docker.io/library/pytoch", "docker.io/library/pytoch"),
    ],
)
def test_a_word_stands_for_one_image(word, expected):
    assert reference(word, PYTORCH, PLAIN) == expected


def test_another_image_of_that_name_is_no_version_of_an_entry_that_has_none():
    debian = {"name": "debian", "reference": "debian:12"}
    newest = {"name": "new", "reference": "docker.io/library/debian:latest"}
    assert reference("debian:latest", debian) == "debian:12"
    assert reference("debian:latest", debian, newest) == "docker.io/library/debian:latest"
    assert reference("debian:latest", debian, {**newest, "reference": "x:1", "aliases": ["debian:latest"]}) == "x:1"


@pytest.mark.parametrize(
    ("word", "near"), [("pytoch", "pytorch"), ("pytorch:1.8", "pytorch:1.7 or pytorch:2.9"), ("defualt", "default")]
)
def test_a_near_miss_is_answered_with_the_likely_name(word, near):
    with pytest.raises(SpecError, match=f"did you mean {near}"):
        reference(word, PYTORCH, PLAIN)


def test_an_image_that_an_agent_holds_is_no_near_miss():
    assert reference("pytoch", PYTORCH, held=["pytoch:latest"]) == "pytoch"


@pytest.mark.parametrize("word", ["lab/secret:1", "docker.io/lab/secret:1", "lab/none:1"])
def test_a_forbidden_image_looks_like_a_missing_one(word):
    with pytest.raises(SpecError, match=r"image: there is no image .* for bob in project default; choose"):
        reference(word, SECRET, PLAIN)


@pytest.mark.parametrize("word", ["secret", "lab/secret:1", "docker.io/lab/secret:1"])
def test_those_whom_an_image_is_for_get_it_by_all_of_its_names(word):
    assert reference(word, SECRET, user="ann") == "lab/secret:1"
    assert reference(word, SECRET, project="vision") == "lab/secret:1"


def test_a_forbidden_images_name_means_what_it_would_without_that_image():
    assert reference("secret", SECRET, PLAIN) == "secret"


def test_a_near_miss_does_not_give_away_what_one_may_not_use():
    assert reference("secrets", SECRET) == "secrets"


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([{"name": "a"}], "neither reference nor versions is given"),
        ([{"name": "a", "reference": "b", "versions": {1: "c"}}], "both reference and versions are given"),
        ([{"name": "a", "versions": {1: "c"}, "default": 2}], "default '2' is no version of it"),
        ([{"name": "a", "versions": {1: "c"}, "aliases": {"x": 3}}], "alias x names '3', no version of it"),
        ([{"name": "a b", "reference": "c"}], "'a b' is not a name of an image"),
        ([{"name": "a", "reference": "b"}, {"name": "c", "reference": "d", "aliases": ["a"]}], "a stands for 2 images"),
        ([{"name": "a", "reference": "b", "minimum": {"ram": 1}}], r"minimum.ram: there is no such field"),
    ],
)
def test_a_wrong_entry_is_one_line(entries, problem):
    with pytest.raises(SpecError, match=problem) as refused:
        catalog(*entries)
    assert "\n" not in str(refused.value)


def test_a_session_gets_the_references_and_the_architecture():
    spec = validated(SessionSpec, {"mem": "8G", "cpu": 2, "roles": [{"name": "ps", "image": "base"}], "image": "ngc"})
    chosen = with_images(spec, choosing(PYTORCH, PLAIN), "default")
    assert (chosen.image, chosen.roles[0].image) == ("nvcr.io/nvidia/pytorch:20.08-py3", "muster/default:latest")
    assert chosen.labels == {"muster/architecture": "x86_64"}
    assert with_images(chosen, choosing(PYTORCH, PLAIN), "default") == chosen


def test_the_default_image_goes_through_the_catalog():
    assert with_images(validated(SessionSpec, {}), choosing(PLAIN), "base").image == "muster/default:latest"


def test_all_shortages_of_a_session_are_reported_at_once():
    spec = validated(SessionSpec, {"image": "torch", "roles": [{"name": "ps", "mem": "6G", "replicas": 2}]})
    with pytest.raises(SpecError) as refused:
        with_images(spec, choosing(PYTORCH), "torch")
    assert [str(error) for error in refused.value.errors] == [
        "cpu: image pytorch needs 2 or more in each container, and 1 is asked for; write 2 or more",
        "mem: image pytorch needs 4G or more in each container, and 1G is asked for; write 4G or more",
        "roles: cpu of role ps: image pytorch needs 2 or more in each container, and 1 is asked for; write 2 or more",
    ]


def test_images_of_two_architectures_are_no_session():
    arm = {"name": "arm", "reference": "lab/arm:1", "architecture": "arm64"}
    spec = validated(SessionSpec, {"image": "torch", "cpu": 2, "mem": "4G", "roles": [{"name": "ps", "image": "arm"}]})
    with pytest.raises(SpecError, match=r"different architectures \(aarch64, x86_64\)"):
        with_images(spec, choosing(PYTORCH, arm), "torch")


AMOUNTS = st.builds(Slots, *[st.integers(0, 4)] * 4)


@cheap
@given(least=AMOUNTS, requested=AMOUNTS)
def test_a_kernel_has_enough_exactly_when_it_has_the_least_of_everything(least, requested):
    minimum = {"gpu": least.gpu, "mem": least.mem, "fgpu": f"{least.fgpu}m"}
    (version,) = catalog({"name": "a", "reference": "b", "minimum": minimum}).versions
    short = {error.field for error in shortages(version, requested)}
    assert ("mem" in short) == (requested.mem < least.mem)
    assert ("gpu" in short) == (requested.gpu < least.gpu)
    assert ("fgpu" in short) == (requested.fgpu < least.fgpu and not requested.gpu)
    assert "cpu" not in short

"""The launch form: it gives a session spec for any input, and a picture of its containers' sum."""

import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import FormData

from muster.core.spec.errors import validated
from muster.core.spec.sbatch import logs_outside_folders
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.errors import SpecError
from muster.web.pages.launch.fields import FIELDS, OTHERS
from muster.web.pages.launch.form import form_of, parse_form, values_of
from muster.web.pages.launch.newest_request import NewestRequest
from muster.web.pages.launch.picture import MAX_BOXES, picture_of
from muster.web.pages.launch.session_file import fields_of, text_of
from tests.strategies.specs import specs
from tests.strategies.values import NOW, texts
from tests.waiting import PATIENCE_S, eventually

AT = datetime.fromtimestamp(NOW, UTC)
_MOUNT, _ENV = ("mount_folder", "mount_target", "mount_mode"), ("env_name", "env_value")
_SECRET = ("secret_name", "secret_place")


@st.composite
def _values(draw):
    """Draw fields as a session file has them."""
    values = written(draw(specs()))
    values["env"] = {**values.get("env", {}), "TEXT": draw(texts() | st.sampled_from(("a\nb", " x ", "", "a=b,c")))}
    extra = {
        "secrets": [["t"], ["t=API"], ["t:/data/.t"], [{"name": "t", "env": "A", "path": "/p"}]],
        "apps": [["ttyd"], ["ttyd=99"], [{"name": "own", "port": 80, "command": "serve"}]],
        "publish": [[8080], ["dash=8081", 70]],
        "bootstrap": ["#!/bin/sh\n  pip install x\n", "a\r\nb"],
        "mounts": [["a/b"], ["a:/x:ro", "b:/y:rw"], [{"folder": "a:b"}], [{"folder": "c", "read_only": True}]],
        "labels": [{"disk": "ssd "}, {"disk": "a  b"}, {"a": "b=c", "d": ""}],
        "workdir": ["/data/it's here"],
    }
    # The secrets of some entries are in these variables, and a variable may only be given once.
    values["env"] = {name: text for name, text in values["env"].items() if name not in {"A", "API"}}
    values |= {name: draw(st.sampled_from(kinds)) for name, kinds in extra.items() if draw(st.booleans())}
    return {name: value for name, value in values.items() if name not in logs_outside_folders(values)}


def _sent_again(form):
    """Return the form after a browser has shown and sent it."""
    pairs = [(name, text.strip("\r\n") if "\n" not in text else text) for name, text in form.texts.items()]
    pairs += [(name, "on") for name in form.checks]
    rows = [(_MOUNT, form.mounts), (_ENV, form.env), (_SECRET, form.secrets)]
    for columns, cells in rows:
        pairs += [pair for row in (*cells, ("",) * len(columns)) for pair in zip(columns, row, strict=True)]
    pairs += [("app", app) for app in form.apps] + [("count", form.count), ("more", form.more)]
    return parse_form(FormData([(name, text.replace("\n", "\r\n")) for name, text in pairs]))


@given(_values())
def test_a_form_that_was_filled_in_is_sent_unchanged(values):
    meant = validated(SessionSpec, values, AT)
    form = _sent_again(form_of(values))
    found = validated(SessionSpec, values_of(form), AT)
    assert found == meant.model_copy(update={"cluster_size": found.cluster_size})
    assert (found.cluster_size or 1) == (meant.cluster_size or 1)
    modes = [["read_only" in mount.model_fields_set for mount in spec.mounts] for spec in (found, meant)]
    assert modes[0] == modes[1]


def test_every_field_of_the_spec_has_a_place_in_the_form_or_is_named_as_one_of_more():
    assert {*FIELDS, *OTHERS} >= set(SessionSpec.model_fields) - {"script", "distributed_env", "ssh_keys"}
    assert values_of(_sent_again(form_of({}))) == {}


def test_more_is_merged_and_nothing_is_given_twice():
    form = _sent_again(form_of({"cpu": 2, "env": {"A": "1"}, "mounts": ["a"]}))
    values = values_of(replace(form, more="env: {B: 2, A: 3}\nmounts: [b]\nmem: 2G\n"))
    assert (values["env"], values["mounts"], values["mem"]) == ({"A": "1", "B": 2}, ["a", "b"], "2G")
    with pytest.raises(SpecError, match="more: cpu is filled in above as well"):
        values_of(replace(form, more="cpu: 3"))
    with pytest.raises(SpecError, match="more: it is not YAML"):
        values_of(replace(form, more="{"))


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), texts() | st.text("a \n#:-'\"\t", max_size=9)))
def test_a_text_of_fields_is_read_as_the_same_fields(fields):
    assert fields_of(text_of(fields), "more") == fields


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x [1]\nb: *x", "alias"),
        ("- 1", "is not a mapping"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: !!binary aGk=", "a session file cannot hold bytes"),
        ('a: "\\ud800"', "it is not YAML"),
        ("[" * 5000, "it is not YAML"),
        ("a: [" + "1," * 20_000 + "]", "it holds more than 10000 values"),
        # Half a million of these would be read for a minute.
        ("a: 1" + ":1" * 5_000, "it holds a number of more than 100 characters"),
        ("a: 1" + ":1" * 300 + ".5", "it holds a number of more than 100 characters"),
        ("a: !!bool x", "a value is not what its tag says"),
        ("a: !!int ''", "a value is not what its tag says"),
        ("a: !!timestamp x", "a value is not what its tag says"),
        ('a: "\\UFFFFFFFF"', "it is not YAML"),
    ],
)
def test_an_invalid_session_file_is_refused_in_one_line(text, problem):
    with pytest.raises(SpecError) as raised:
        fields_of(text, "file")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


# The picture


def test_a_picture_has_a_box_for_each_container_and_says_what_they_add_up_to():
    drawn = picture_of(validated(SessionSpec, {"cluster_size": 3, "cpu": 2, "mem": "4G", "fgpu": 0.5}), None)
    assert [box.name for box in drawn.boxes] == ["main1", "sub1", "sub2"]
    assert drawn.text == "3 containers \u00d7 2 CPU, 4 GiB memory, 0.5 fGPU = 6 CPU, 12 GiB memory, 1.5 fGPU"
    assert [len(lane.parts) for lane in drawn.lanes] == [3, 3, 3]


def test_a_large_session_is_drawn_by_its_roles():
    values = {"cluster_size": 1 + MAX_BOXES, "roles": ["ps:2,cpu=4"]}
    drawn = picture_of(validated(SessionSpec, values), None)
    assert [box.name for box in drawn.boxes] == ["main1", "ps \u00d7 2", f"sub \u00d7 {MAX_BOXES - 2}"]
    assert drawn.text.endswith(f" = {MAX_BOXES - 1 + 8} CPU, {MAX_BOXES + 1} GiB memory")


@given(specs())
def test_every_spec_can_be_drawn_and_no_part_is_longer_than_its_whole(spec):
    drawn = picture_of(spec, None)
    assert all(0 <= bar.part <= 1 for box in drawn.boxes for bar in box.bars)
    assert all(x + width <= 360.01 for lane in drawn.lanes for x, width in lane.parts)


# Questions


def test_only_the_newest_request_of_a_page_is_answered():
    requests = NewestRequest()
    answered: dict[str, bool] = {}
    begun, may_end = threading.Event(), threading.Event()

    def ask(name, *, holds=False):
        with requests.turn("page") as is_newest:
            answered[name] = is_newest
            begun.set()
            if holds:
                assert may_end.wait(PATIENCE_S)

    threads = [threading.Thread(target=ask, args=("first",), kwargs={"holds": True})]
    threads[0].start()
    assert begun.wait(PATIENCE_S)

    def begin(name, number):
        threads.append(threading.Thread(target=ask, args=(name,)))
        threads[-1].start()
        eventually(lambda: requests.pending("page") >= number)

    begin("overtaken", 2)
    begin("newest", 3)
    with requests.turn("another page") as is_newest:
        assert is_newest
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert answered == {"first": True, "overtaken": False, "newest": True}
    assert requests.pending("page") == 0

"""A spec as a person writes it, and as the command line that submits it: each gives the same spec again."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.cli.sessions import submit as submit_module
from muster.core.spec.command_line import FILE, submit_command
from muster.core.spec.errors import validated
from muster.core.spec.mounts import HOME
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.units import exact_bytes, exact_duration, exact_milli, parse_bytes, parse_duration, parse_milli
from tests.command_line import muster
from tests.properties import cheap, examples
from tests.strategies.specs import specs
from tests.strategies.values import NOW, texts

_SUBMITTED = datetime.fromtimestamp(NOW, UTC)
_MORE = st.fixed_dictionaries(
    {},
    optional={
        # Names too long for `specs` to make them by chance: a variable is in env or a secret's, never both.
        "secrets": st.sampled_from(
            (["token"], ["t=API_KEY"], ["t:/data/.t"], [{"name": "t", "env": "T_KEY", "path": "/p"}])
        ),
        "apps": st.sampled_from((["ttyd"], ["jupyterlab=9999"], [{"name": "own", "port": 80, "command": "run, all"}])),
        "publish": st.sampled_from(([8080], ["dash=8081"])),
        "bootstrap": st.just("#!/bin/sh\n  pip install x\n"),
        "workdir": st.just("/data/it's here"),
        "callback": st.just("https://hooks.example.org/a?b=c&d"),
        "dot_folders": st.booleans(),
        "idle_timeout": st.integers(1, 10**7).map(lambda s: f"{s}s"),
        "mounts": st.sampled_from((["a/b"], ["a:/x:ro", "b:/y:rw"], [{"folder": "a:b", "target": "/c:d"}])),
        "roles": st.sampled_from((["ps:2,cpu=0.125,fgpu=0"], [{"name": "ps", "command": "a, b", "shm": "1500K"}])),
    },
)  # fmt: skip


@st.composite
def _specs(draw: st.DrawFn) -> SessionSpec:
    more = draw(_MORE)
    base = draw(specs()).model_dump()
    base["secrets"], base["env"] = [], {**base["env"], "TEXT": draw(texts() | st.sampled_from(("--", "-x", "a\nb")))}
    if "roles" in more:
        base |= {"cluster_size": None}
    merged = {**base, **more}
    merged |= dict.fromkeys(SessionSpec.model_validate(merged).lost_logs(HOME))
    without_input = SessionSpec.model_validate({**merged, "input": None, "output": None, "error": None})
    # Other roles may make it an interactive session, which reads none and writes no files.
    return SessionSpec.model_validate(merged) if without_input.is_batch else without_input


class _Asked:
    """A stand-in for the queue, which keeps the command line's requests."""

    def __init__(self) -> None:
        self.spec: Mapping[str, Any] = {}
        self.count = 0

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> object:
        del owner
        self.spec, self.count = spec, count
        return None


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Asked:
    stand_in = _Asked()

    @contextmanager
    def backend() -> Iterator[_Asked]:
        yield stand_in

    def answered(answer: object, *, as_json: bool) -> int:
        del answer, as_json
        return 0

    monkeypatch.setattr(submit_module, "opened_backend", backend)
    monkeypatch.setattr(submit_module, "print_dry_run", answered)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return stand_in


def _same(given_spec: SessionSpec, original: SessionSpec) -> None:
    assert (given_spec.begin is None) == (original.begin is None)
    assert abs((given_spec.begin or 0) - (original.begin or 0)) < 1e-5
    assert given_spec.model_copy(update={"begin": original.begin}) == original
    modes = [["read_only" in mount.model_fields_set for mount in spec.mounts] for spec in (given_spec, original)]
    assert modes[0] == modes[1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_specs(), st.integers(1, 3))
def test_the_command_line_submits_the_same_spec(requested, original, count):
    values = written(original)
    command = submit_command(values, count)
    Path(FILE).write_text(yaml.safe_dump(values), encoding="utf-8")
    words = shlex.split(command.text)
    assert muster(*words[1:], "--dry-run").code == 0
    assert requested.count == count
    _same(validated(SessionSpec, {"ssh_keys": (), **requested.spec}, _SUBMITTED), original)
    if "ssh_keys" not in values:
        assert not requested.spec["ssh_keys"]


@examples(60)
@given(_specs())
def test_a_written_spec_reads_back_the_same_and_names_no_default(original):
    values = written(original)
    _same(validated(SessionSpec, yaml.safe_load(yaml.safe_dump(values)), _SUBMITTED), original)
    for name in SessionSpec.model_fields:
        is_default = getattr(original, name) == SessionSpec.model_fields[name].get_default(call_default_factory=True)
        assert (name in values) != is_default


def test_fields_without_a_flag_are_named_and_take_a_file():
    spec = SessionSpec.model_validate({"roles": [{"name": "ps", "command": "a, b"}], "bootstrap": "true", "cpu": 2})
    command = submit_command(written(spec))
    assert command.unflagged == ("bootstrap", "roles")
    assert command.text == f"muster submit --file {FILE}"


def test_a_command_line_reads_as_a_person_would_write_it():
    values = {"name": "lab", "cluster_size": 3, "cpu": "0.5", "mem": "1.5G", "time_limit": "90m", "env": ["A=x y"],
              "command": "-c", "mounts": ["data:/d:ro"], "dot_folders": False, "requeue": True}  # fmt: skip
    command = submit_command(written(SessionSpec.model_validate(values)), 2)
    assert not command.unflagged
    assert command.text == (
        "muster submit --time-limit 1h30m --no-dot-folders --name lab --command=-c --cluster-size 3 --cpu 0.5"
        " --mem 1536M --env 'A=x y' --mount data:/d:ro --requeue --count 2"
    )


@cheap
@given(st.integers(0, 10**12), st.integers(0, 1 << 60), st.integers(1, 86400 * 10**8))
def test_amounts_are_exact(milli, amount, seconds):
    assert parse_milli(exact_milli(milli)) == milli
    assert parse_bytes(exact_bytes(amount)) == amount
    assert parse_duration(exact_duration(seconds)) == seconds

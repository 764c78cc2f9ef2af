"""Hostile input by a seed: what tenants, agents and kernels send, and what is wrong with the answer to it."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from muster.contract.outcome import outcomes_from_agent
from muster.contract.report import report_from_agent
from muster.contract.values import ContractError, printable
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.model.session import SessionState
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError
from muster.service.specs.new_sessions import new_sessions
from tests.hostile.malformed import changed, paths
from tests.hostile.tars import Trap, hostile_tar
from tests.simulated.hosts import report_of
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import fake_key_pair

_TEXTS = (
    *("", " ", "\0", "\x1b[2J", "\u202e", "\ud800", "..", "/", "a/../b", "-", "--", "a b", "a\nb", "x" * 2_000),
    *(
        "9" * 5_000,
        "1e999",
        "-1",
        "nan",
        "inf",
        "0x10",
        "1_000",
        "999999999d",
        "now+9999999999d",
    ),
    *("@", "sha256:" + "a" * 64, "a@sha256:" + "b" * 64, "index.docker.io/lab/train:2", "a" * 300, "${HOME}", "$(id)"),
    *(
        "0-999999999",
        "0-9:0",
        "%",
        "1,2,,3",
        "a=b",
        "=",
        "a=b=c",
        "ps:2,cpu=1",
        "a:b:c:d",
        "{{ 7*7 }}",
        "%s%n",
        "é" * 200,
    ),
)
_NUMBERS = (0, -1, 1, 2**31, 2**63, 10**40, -(10**40), 0.1, 1e308, float("inf"), float("nan"))
_KEYS = ("unknown", "name", "target", "folder", "image", "env", "x" * 500, "\x1b", "", "__class__")


def odd_value(random: Random, depth: int = 0) -> Any:
    """Return a value that no field was made for."""
    makers: tuple[Callable[[], Any], ...] = (
        lambda: random.choice(_TEXTS),
        lambda: random.choice(_NUMBERS),
        lambda: random.choice((None, True, False)),
        lambda: "".join(chr(random.choice((random.randrange(128), random.randrange(0x3000)))) for _ in range(9)),
        lambda: _deep(random),
        lambda: [odd_value(random, depth + 1) for _ in range(random.randrange(4))],
        lambda: {random.choice(_KEYS): odd_value(random, depth + 1) for _ in range(random.randrange(4))},
    )
    return random.choice(makers if depth < 3 else makers[:5])()


def _deep(random: Random) -> Any:
    value: Any = random.choice(_TEXTS)
    for _ in range(random.randrange(1, 300)):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def _is_a_short_line(text: str) -> bool:
    return printable(text) == text and "\n" not in text and len(text) < 2_000


def problem_with_spec(random: Random) -> str:
    """Return what is wrong when a hostile spec is submitted: it is refused in short lines, or it is taken whole."""
    names = list(SessionSpec.model_fields)
    spec = {random.choice(names): odd_value(random) for _ in range(random.randrange(1, 5))}
    if random.random() < 0.2:
        spec[str(odd_value(random))] = odd_value(random)
    try:
        taken = validated(SessionSpec, spec)
        made = new_sessions(taken, "ada", random.choice((1, 1, 2, 0, 10**9)), 0.0)
        text = made[0].spec.model_dump_json()
        text.encode()
        return "" if SessionSpec.model_validate_json(text) == made[0].spec else "it is another after it was stored"
    except BadInputError as error:
        return "" if all(map(_is_a_short_line, str(error).split("\n"))) else f"no short line: {error!r:.300}"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"{type(error).__name__}: {error!s:.200}; {spec!r:.500}"


_STARTS = placed_on(make_session(1), "a1", state=SessionState.PREPARING)
_ENDS = placed_on(make_session(2), "a1", state=SessionState.TERMINATING)
_MANIFEST = manifest(
    make_agent("a1"), [_STARTS, _ENDS], {_STARTS.id: fake_key_pair("s1")}, 7, LaunchPolicy(), lambda name, _: name
)
_REPORT = report_of("far", gpus=2, swarm="manager", numa_nodes=2)
_WORDS = {
    "session_id": _ENDS.id,
    "kernel_id": _ENDS.main.id,
    "name": "main1",
    "exit_code": 1,
    "oom_killed": False,
    "started_at": None,
    "finished_at": None,
    "log_gz_b64": "H4sIAAAAAAAAAwMAAAAAAAAAAAA=",
    "log_truncated": False,
    "use": None,
}
_ANSWER = {
    "sessions": [
        {"id": _STARTS.id, "outcome": "released", "error": None, "permanent": False},
        {"id": _ENDS.id, "outcome": "stopped", "error": None, "permanent": False},
    ],
    "last_words": [_WORDS],
}


def problem_with_report(random: Random) -> str:
    """Return what is wrong when an agent's answer is malformed: it is refused in a line, or it is allowed."""
    whole, read = random.choice(
        ((_REPORT, report_from_agent), (_ANSWER, lambda said: outcomes_from_agent(said, _MANIFEST)))
    )
    said: Any = whole
    for _ in range(random.randrange(1, 4)):
        places = list(paths(said))
        if places:
            change = random.choice(("removed", "added", "retyped", "nested"))
            said = changed(said, random.choice(places), change, odd_value(random))
    try:
        read(said)
    except ContractError as error:
        line = str(error)
        return "" if _is_a_short_line(line) else f"no short line: {line!r:.300}"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"{type(error).__name__}: {error!s:.200}; {json.dumps(said, default=str):.500}"
    return ""


def problem_with_tar(random: Random) -> str:
    """Return what is wrong after a hostile archive came out of a kernel: nothing outside of the copy may change."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            return "; ".join(Trap(Path(directory)).sprung(hostile_tar(random)))
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return f"{type(error).__name__}: {error!s:.200}"


KINDS: dict[str, Callable[[Random], str]] = {
    "specs": problem_with_spec,
    "reports": problem_with_report,
    "tars": problem_with_tar,
}


def problems(kind: str, seed: int, count: int, first: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the number and the problem of each input with one; `python -m bench.fuzz` says how to try it again."""
    for number in range(first, first + count):
        problem = KINDS[kind](Random(f"{seed}-{kind}-{number}"))
        if problem:
            yield number, problem

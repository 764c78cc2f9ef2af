"""Scripts for Slurm as specs: what each #SBATCH option means here, and which ones have no effect."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.spec.errors import validated
from muster.core.spec.sbatch import translation
from muster.core.spec.sbatch_options import TRANSLATED, has_sbatch_lines
from muster.core.spec.session_spec import SessionSpec
from tests.properties import examples

NOW = datetime(2026, 11, 23, 9)  # noqa: DTZ001 - local time, as the control node's


def script(*lines: str) -> str:
    return "\n".join(("#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "srun hostname", ""))


def fields(*lines: str, **environment: str) -> dict[str, Any]:
    translated = translation(script(*lines), environment)
    assert translated.errors == ()
    found = dict(translated.fields)
    assert found.pop("slurm_env") is True
    return found


def errors(*lines: str) -> list[str]:
    return [f"{error.field}: {error.problem}" for error in translation(script(*lines), {}).errors]


def without_effect(*lines: str) -> tuple[str, ...]:
    return translation(script(*lines), {}).without_effect


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--job-name=train", {"name": "train"}),
        ("-J train", {"name": "train"}),
        ("-Jtrain", {"name": "train"}),
        ("--job-name 'my train/1'", {"name": "my-train-1"}),
        ("--time=30", {"time_limit": "1800s"}),
        ("-t 1:30", {"time_limit": "90s"}),
        ("-t 02:00:00", {"time_limit": "7200s"}),
        ("--time=1-12", {"time_limit": "129600s"}),
        ("--time=UNLIMITED", {}),
        ("--time=0", {}),
        ("--array=0-15%4", {"array": "0-15%4"}),
        ("-a 1,3,5-9:2", {"array": "1,3,5-9:2"}),
        ("--dependency=afterok:one:two,afterany:three", {"after_ok": ["one", "two"], "after_any": ["three"]}),
        ("-d after:one", {"after": ["one"]}),
        ("--partition=gpu", {"resource_group": "gpu"}),
        ("-p gpu,cpu", {"resource_group": "gpu"}),
        ("--account=vision", {"project": "vision"}),
        ("-A vision", {"project": "vision"}),
        ("--begin=now+2hours", {"begin": "now+7200s"}),
        ("-b now+60", {"begin": "now+60s"}),
        ("-b now", {}),
        ("-b 16:00", {"begin": "16:00"}),
        ("-b noon", {"begin": "12:00"}),
        ("--begin=2026-11-24T08:00:00", {"begin": "2026-11-24T08:00:00"}),
        ("--hold", {"hold": True}),
        ("-H", {"hold": True}),
        ("--requeue", {"requeue": True}),
        ("--export=A=1,B=x=y", {"env": {"A": "1", "B": "x=y"}}),
        ("--export=NONE", {}),
        ("--export=HERE,ELSEWHERE", {"env": {"HERE": "of the shell"}}),
        ("--chdir=/data/project", {"workdir": "/data/project"}),
        ("-D /data/project", {"workdir": "/data/project"}),
        ("--output=logs/%x-%j.out", {"output": "logs/%x-%j.out"}),
        ("-o logs/a#b.out  # a remark", {"output": "logs/a#b.out"}),
        ("-e logs/%j.err", {"error": "logs/%j.err"}),
    ],
)  # fmt: skip
def test_an_option_means_a_field(line, expected):
    assert fields(line, HERE="of the shell") == {"cpu": 1, **expected}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--nodes=1", {"cpu": 1}),
        ("-N 4", {"cluster_size": 4, "cpu": 1}),
        ("-N2-2", {"cluster_size": 2, "cpu": 1}),
        ("-N2-8", {"cluster_size": "2-8", "cpu": 1}),
        ("--nodes=1-4 --gpus-per-node=2", {"cluster_size": "1-4", "cpu": 1, "gpu": 2}),
        ("-N 2-8 --ntasks-per-node=4", {"cluster_size": "2-8", "cpu": 4, "tasks_per_kernel": 4}),
        ("-N 2-8 -n 16 -c 2 --mem-per-cpu=1G", {"cluster_size": "2-8", "cpu": 16, "mem": 16 << 30, "tasks": 16}),
        ("-N 2-8 -n 4", {"cluster_size": "2-4", "cpu": 2, "tasks": 4}),
        ("-N 4-8 -n 2", {"cluster_size": 2, "cpu": 1}),
        ("-N 2-8 -n 16 --ntasks-per-node=4", {"cluster_size": "4-8", "cpu": 4, "tasks": 16}),
        ("-N 2-8 --gpus=4", {"cluster_size": 2, "cpu": 1, "gpu": 2}),
        ("-N 2 --ntasks-per-node=4", {"cluster_size": 2, "cpu": 4, "tasks_per_kernel": 4}),
        ("-N 2 -n 8 -c 2", {"cluster_size": 2, "cpu": 8, "tasks": 8}),
        ("-N 2 -n 3", {"cluster_size": 2, "cpu": 2, "tasks": 3}),
        ("-N 4 -n 2", {"cluster_size": 2, "cpu": 1}),
        ("-n 4", {"cluster_size": 4, "cpu": 1}),
        ("-n 4 --cpus-per-task=8", {"cluster_size": 4, "cpu": 8}),
        ("-n 8 --ntasks-per-node=3", {"cluster_size": 3, "cpu": 3, "tasks": 8}),
        ("--ntasks-per-node=4", {"cpu": 4, "tasks_per_kernel": 4}),
        ("-n 4 --mem=8G", {"cpu": 4, "tasks": 4, "mem": 8 << 30}),
        ("-n 4 --gres=gpu:4", {"cpu": 4, "tasks": 4, "gpu": 4}),
        ("--mem=4000", {"cpu": 1, "mem": 4000 << 20}),
        ("--mem=512M", {"cpu": 1, "mem": 512 << 20}),
        ("-n 2 --mem-per-cpu=2G -c 4", {"cluster_size": 2, "cpu": 4, "mem": 8 << 30}),
        ("--gres=gpu:2", {"cpu": 1, "gpu": 2}),
        ("--gres=gpu", {"cpu": 1, "gpu": 1}),
        ("--gres=gpu:a100:2", {"cpu": 1, "gpu": 2, "gpu_models": ["a100"]}),
        ("--gres=gpu:a100", {"cpu": 1, "gpu": 1, "gpu_models": ["a100"]}),
        ("-N 2 --gpus-per-node=h100:8", {"cluster_size": 2, "cpu": 1, "gpu": 8, "gpu_models": ["h100"]}),
        ("-N 2 --gpus=16", {"cluster_size": 2, "cpu": 1, "gpu": 8}),
        ("-n 4 --gpus=4", {"cluster_size": 4, "cpu": 1, "gpu": 1}),
    ],
)  # fmt: skip
def test_nodes_and_tasks_become_kernels_and_what_each_is_given(line, expected):
    mode = {"cluster_mode": "multi-node"} if "cluster_size" in expected else {}
    assert fields(line) == {**expected, **mode}


def test_every_other_option_is_named_once():
    lines = ("--mail-type=END --mail-user ada@example.org", "-q normal", "--exclusive", "--constraint=ib --qos=x")
    assert without_effect(*lines, "--qos=y") == (
        "--mail-type", "--mail-user", "-q", "--exclusive", "--constraint", "--qos",
    )  # fmt: skip


def test_an_option_that_means_less_here_is_named_with_what_became_of_it():
    assert without_effect("-N 2-4 -G 2 -p a,b", "--gres=shard:2", "--export=ALL,A=1", "-J 'a b'") == (
        "--job-name=a b (the session's name is a-b)",
        "--gres=shard:2",
        "--partition=a,b (a, since a session is in one group)",
        "--export=ALL (the submitting shell's variables are not taken along)",
        "--nodes=2-4 (2, among which the GPUs are divided)",
    )


def test_the_last_of_an_options_values_counts():
    assert fields("--nodes=2", "-N 3")["cluster_size"] == 3


def test_lines_after_the_first_command_are_none():
    text = "#!/bin/bash\n\n# a remark\n#SBATCH -N 2\n#SBATCHED\nexport A=1\n#SBATCH -N 3\n"
    assert translation(text, {}).fields["cluster_size"] == 2
    assert not has_sbatch_lines("#!/bin/sh\n#MUSTER --cpu 2\necho '#SBATCH -N 3'\n#SBATCH -N 3\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--nodes=many", "--nodes: 'many' is no number of nodes"),
        ("-N 8-2", "--nodes: the range 8-2 ends before it begins"),
        ("-n 0", "--ntasks: '0' is no positive whole number"),
        ("--mem=lots", "--mem: 'lots' is no amount of memory"),
        ("--mem=0", "--mem: 0 means all memory of a node, which differs here"),
        ("--time=soon", "--time: 'soon' is not a span of time"),
        ("--array=9-1", "--array: the range 9-1 ends before it begins"),
        ("--gpus=a100", "--gpus: 'a100' is no number of GPUs"),
        ("--gres=gpu:a100:many", "--gres: 'gpu:a100:many' is no number of GPUs"),
        ("-N 2 --gpus=3", "--gpus: 3 GPUs cannot be divided among 2 containers"),
        ("--dependency=singleton", "--dependency: 'singleton' cannot be translated"),
        ("--dependency=afternotok:one", "--dependency: 'afternotok:one' cannot be translated"),
        ("-d after:one+5", "--dependency: 'after:one+5' has a delay or alternatives, which Muster lacks"),
        ("--begin=someday", "--begin: 'someday' is no point in time"),
        ("--chdir=project", "--chdir: 'project' is no absolute path"),
        ("--export=1A", "--export: '1A' is neither a variable nor ALL"),
        ("--hold=yes", "--hold: it takes no value"),
        ("--requeue now", "--requeue: it takes no value"),
        ("--job-name", "--job-name: it has no value"),
        ("--job-name=///", "--job-name: '///' holds no letter or digit"),
    ],
)
def test_an_impossible_value_is_refused_with_its_line(line, problem):
    assert errors("--comment=x", line) == [f"line 3: {problem}"]


def test_words_that_are_no_option_are_refused_with_their_line():
    assert errors("nodes=2", "-J 'a") == ["line 2: 'nodes=2' is no option", "line 3: no closing quotation"]


def test_all_errors_come_at_once():
    assert errors("--nodes=x --mem=y", "--time=z") == [
        "line 2: --nodes: 'x' is no number of nodes",
        "line 2: --mem: 'y' is no amount of memory",
        "line 3: --time: 'z' is not a span of time",
    ]


NUMBERS = st.none() | st.integers(1, 40)


@examples(300)
@given(nodes=NUMBERS, more=st.integers(0, 10), tasks=NUMBERS, per_node=NUMBERS, cpus=NUMBERS, memory=st.booleans())
def test_the_kernels_hold_the_tasks_with_what_each_needs(nodes, more, tasks, per_node, cpus, memory):
    written = None if nodes is None else f"{nodes}-{nodes + more}"
    options = {"nodes": written, "ntasks": tasks, "ntasks-per-node": per_node, "cpus-per-task": cpus}
    lines = [f"--{name}={value}" for name, value in options.items() if value is not None]
    found = fields(*lines, *(["--mem-per-cpu=1G"] if memory else []))
    spec = validated(SessionSpec, {**found, "script": "#!/bin/sh\n"}, NOW)
    size, most = spec.sizes
    for kernels in (size, most):
        count = spec.tasks or kernels * (spec.tasks_per_kernel or 1)
        assert tasks is None or count == tasks
        assert kernels <= count <= kernels * (spec.cpu // 1000) // (cpus or 1)
    if nodes is None:
        assert size == most
    else:
        assert most == min(nodes + more, tasks or nodes + more)
        assert min(nodes, most) <= size <= most
        assert per_node is None or tasks is None or more == 0 or -(-tasks // size) <= per_node or size == most
    assert spec.mem == (spec.cpu // 1000 << 30 if memory else 1 << 30)


WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
OPTIONS = st.sampled_from(sorted(TRANSLATED)) | st.from_regex(r"[a-z][a-z-]{0,12}", fullmatch=True)


@examples(300)
@given(st.lists(st.tuples(OPTIONS, st.sampled_from("= "), WORDS), max_size=6))
def test_any_script_is_translated_or_refused_and_no_option_passes_silently(options):
    text = script(*(f"--{name}{between}{value}" for name, between, value in options))
    found = translation(text, {})
    unknown = {f"--{name}" for name, _, _ in options if name not in TRANSLATED}
    assert found.errors or unknown <= set(found.without_effect)
    assert set(found.fields) <= set(SessionSpec.model_fields)

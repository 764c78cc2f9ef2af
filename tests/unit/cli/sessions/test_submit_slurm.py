"""`muster submit` of scripts that were written for Slurm."""

import pytest

from tests.command_line import muster, nothing_queued, submitted

SBATCH = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2 --ntasks-per-node=4
#SBATCH --mem=2G
#SBATCH --mail-type=END
#SBATCH --output=logs/%x-%j.out
srun python train.py
"""


def test_a_script_for_slurm_is_queued_with_what_its_lines_say(script):
    answer = muster("submit", script(SBATCH), "--mount", "logs", "--json")
    (session,) = answer.json
    spec = session["spec"]
    assert (session["name"], session["cluster_size"], session["type"]) == ("train", 2, "batch")
    assert (spec["cpu"], spec["mem"], spec["tasks_per_kernel"], spec["slurm_env"]) == ("4000m", 2 << 30, 4, True)
    assert (spec["script"], spec["output"]) == (SBATCH, "logs/%x-%j.out")
    (warning,) = answer.errors
    assert warning.startswith("muster: ")
    assert warning.endswith("/job.sh: without their effect in Slurm (docs/slurm.md): --mail-type")


def test_muster_lines_and_flags_win_over_sbatch_lines(script):
    path = script(
        "#!/bin/sh\n#MUSTER --cpu 2 -e A=1\n#SBATCH -c 8 --mem=4G --export=A=0,B=0\n#SBATCH -J slurm\nsrun true\n"
    )
    session = submitted(path, "--mem", "1G", "--no-slurm-env")
    spec = session["spec"]
    assert (session["name"], spec["cpu"], spec["mem"]) == ("slurm", "2000m", 1 << 30)
    assert (spec["env"], spec["slurm_env"]) == ({"A": "1", "B": "0"}, False)


def test_a_number_of_tasks_wins_over_one_for_each_kernel_of_an_sbatch_line(script):
    session = submitted(script(SBATCH), "--mount", "logs", "--tasks", "6")
    spec = session["spec"]
    assert (spec["tasks"], spec["tasks_per_kernel"]) == (6, None)


def test_a_log_file_of_an_sbatch_line_needs_a_folder_and_one_of_a_flag_must_have_it(script):
    answer = muster("submit", script(SBATCH), "--json")
    assert answer.json[0]["spec"]["output"] is None
    assert answer.errors[-1] == (
        "muster: logs/%x-%j.out: in no data folder, so the output is in `muster logs` alone;"
        " mount one for it: --mount FOLDER"
    )
    answer = muster("submit", "--output", "logs/%x", "--name", "mine", "--", "true")
    assert answer.code == 2
    assert answer.err == (
        "muster: output: 'logs/%x' is in no data folder that can be written to; mount one, and begin"
        " with its name, such as logs/%x.log\n"
    )


def test_a_script_for_slurm_with_errors_names_their_lines_and_queues_nothing(script):
    path = script("#!/bin/sh\n#SBATCH --nodes=x\n\n#SBATCH --time=y\ntrue\n")
    answer = muster("submit", path)
    assert answer.code == 2
    nodes, limit = answer.errors
    assert nodes == f"muster: {path}: line 2: --nodes: 'x' is no number of nodes; write a number such as 4, or 2-8"
    assert limit.startswith(f"muster: {path}: line 4: --time: 'y' is not a span of time; write minutes")
    assert nothing_queued()


def test_errors_of_sbatch_lines_come_with_those_of_the_rest_and_without_what_follows_from_them(script):
    path = script("#!/bin/sh\n#SBATCH --nodes=x --mem=lots\n#MUSTER --shm 4G --role ps:0\ntrue\n")
    answer = muster("submit", path, "--cpu", "many", "--app", "nosuch")
    assert answer.code == 2
    assert [line.split("; ")[0] for line in answer.errors] == [
        f"muster: {path}: line 2: --nodes: 'x' is no number of nodes",
        f"muster: {path}: line 2: --mem: 'lots' is no amount of memory",
        "muster: roles[0].replicas: '0' is too small",
        "muster: cpu: 'many' is not a number",
        "muster: apps[0]: there is no app 'nosuch'",
    ]
    assert nothing_queued()


def test_a_script_for_slurm_can_be_submitted_again_while_it_runs(script):
    path = script("#!/bin/sh\n#SBATCH -J train\ntrue\n")
    assert submitted(path)["name"] == "train"
    again = submitted(path)["name"]
    assert again.startswith("train-")
    assert len(again) == len("train-0000")
    assert muster("submit", path, "--name", "train").code == 2


@pytest.mark.parametrize(
    ("file", "name"), [("my model.sh", "my-model"), ("f(x)=y", "f-x-y"), ("a" * 60, "a" * 50), ("…", "job")]
)
def test_a_script_for_slurm_may_be_called_anything_and_be_submitted_again(tmp_path, file, name):
    path = tmp_path / file
    path.write_text("#!/bin/sh\n#SBATCH -c 1\ntrue\n", encoding="utf-8")
    assert submitted(str(path))["name"] == name
    again = submitted(str(path))["name"]
    assert again.startswith(f"{name}-")
    assert len(again) == len(name) + 5

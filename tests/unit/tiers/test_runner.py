"""`./dev test` runs every tier, also when one fails, and its exit code and last lines say what came of them."""

import os
import stat

import pytest

from tests.tiers.plan import LINT, PLAN, PROVISION, UNIT, Tier
from tests.tiers.reports import read_record
from tests.tiers.runner import Outcome, Processors, Runner, Verdict, exit_code, failure_lines, summary

DEV = """#!/bin/sh
# Succeeds, fails or prints, as its first argument says; writes a record as the plugin does.
record() { echo "{\\"test\\": \\"$1\\", \\"outcome\\": \\"$2\\", \\"duration_s\\": $3}" >>"$MUSTER_TIER_REPORT"; }
case "$1" in
  good) record a passed 0.5; record a passed 1; record b passed 3 ;;
  bad) record c failed 2; echo "FAILED c - assert 1 == 2"; exit 1 ;;
  provision) test -z "$MUSTER_PROVISIONED" || exit 3; exit "$PROVISION_CODE" ;;
  engine) test "$MUSTER_PROVISIONED" = 1 ;;
  equal) test "$(nice)" = "$NICENESS" ;;
  less) test "$(nice)" = "$((NICENESS + 3 < 19 ? NICENESS + 3 : 19))" ;;
esac
"""
pytest_plugins = ["pytester"]
GOOD, BAD = Tier("good", ("good",), on_engine=False), Tier("bad", ("bad",), on_engine=False)
ENGINE = Tier("engine", ("engine",))


@pytest.fixture
def dev(tmp_path, monkeypatch):
    program = tmp_path / "dev"
    program.write_text(DEV)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.delenv("MUSTER_PROVISIONED", raising=False)
    monkeypatch.setenv("PROVISION_CODE", "0")
    return (str(program),)


def verdicts(outcomes):
    return {outcome.tier.name: str(outcome.verdict) for outcome in outcomes}


def test_tiers_run_on_after_one_that_failed(dev, capfd):
    later = Tier("later", ("engine",))
    outcomes = Runner(dev).run([((BAD, GOOD), (ENGINE,)), ((later,),)])
    assert [str(outcome.verdict) for outcome in outcomes] == ["failed", "passed", "passed", "passed"]
    assert exit_code(outcomes, in_ci=False) == 1
    text = summary(outcomes)
    assert text.startswith("FAILED c - assert 1 == 2\n")
    assert text.endswith("\n2 passed, 1 failed")
    assert "    3.0 s  b\n    2.0 s  c\n    1.5 s  a\n" in text
    assert "FAILED c" in capfd.readouterr().out


def test_the_summary_repeats_what_a_playbook_of_molecule_failed_with():
    red, plain = "\x1b[31m", "\x1b[0m"
    printed = [
        "TASK [Install Docker]\n",
        f"  {red}│{plain} fatal: [overlay-1]: FAILED! => no such package\n",
        "\n",
        f"{red}ERROR   {plain} overlay ➜ converge: {red}Executed: Failed{plain}\n",
        "PLAY [Remove the hosts]\n",
        f"{red}ERROR   {plain} Molecule executed 1 scenario\n",
    ]
    assert failure_lines(printed) == ("TASK [Install Docker]", "  │ fatal: [overlay-1]: FAILED! => no such package")


def test_a_tier_without_tests_fails_with_its_last_lines():
    assert failure_lines(f"{index}\n" for index in range(100))[-2:] == ("98", "99")
    assert failure_lines(["a\n", "E   assert 1 == 2\n", "FAILED a\n", "end\n"]) == ("E   assert 1 == 2", "FAILED a")


def test_nothing_runs_after_a_gate_that_failed(dev):
    gate = Tier("gate", ("bad",), on_engine=False, is_gate=True)
    outcomes = Runner(dev).run([((gate,), (GOOD,)), ((GOOD, ENGINE),)])
    assert verdicts(outcomes) == {"gate": "failed", "good": "did not run", "engine": "did not run"}
    assert outcomes[-1].reason == "gate failed"


def test_tiers_that_need_an_engine_do_not_run_without_one(dev, monkeypatch):
    monkeypatch.setenv("PROVISION_CODE", "1")
    plan = [((PROVISION,),), ((ENGINE, GOOD),)]
    outcomes = Runner(dev).run(plan)
    assert verdicts(outcomes) == {"provisioning": "failed", "engine": "did not run", "good": "passed"}
    monkeypatch.setenv("PROVISION_CODE", "0")
    assert set(verdicts(Runner(dev).run(plan)).values()) == {"passed"}
    assert verdicts(Runner(dev, "it needs root").run(plan))["engine"] == "did not run"


def test_a_tier_gives_way_by_its_niceness_alone(dev, monkeypatch):
    monkeypatch.setenv("NICENESS", str(os.nice(0)))
    lane = (Tier("equal", ("equal",), on_engine=False), Tier("less", ("less",), on_engine=False, niceness=3))
    assert verdicts(Runner(dev).run([(lane,)])) == {"equal": "passed", "less": "passed"}


def test_the_summary_says_what_each_tier_took_and_how_busy_the_processors_were():
    text = summary([Outcome(UNIT, Verdict.PASSED, duration_s=60, cpu_s=100)])
    assert "unit and contract  passed     60 s,   100 s of CPU\n" in text
    later = Processors(busy_s=100 + 90, all_s=1000 + 120)
    assert later.since(Processors(100, 1000)) == "2 min of CPU; processors were busy for 75% of the time"
    before = Processors.now()
    assert 0 < before.busy_s < before.all_s <= Processors.now().all_s


def test_a_tier_that_did_not_run_fails_in_ci_only():
    outcomes = [Outcome(UNIT, Verdict.PASSED), Outcome(ENGINE, Verdict.DID_NOT_RUN, reason="it needs root")]
    assert (exit_code(outcomes, in_ci=False), exit_code(outcomes, in_ci=True)) == (0, 1)
    assert "engine             did not run: it needs root\n0 passed, 0 failed" in summary(outcomes)


def test_the_plan_begins_with_lint_and_names_each_tier_once():
    assert PLAN[0][0] == (LINT,)
    assert LINT.is_gate
    names = [tier.name for stage in PLAN for lane in stage for tier in lane]
    assert len(names) == len(set(names))


def test_a_test_that_fails_in_its_fixture_counts_as_failed(pytester, monkeypatch, tmp_path):
    pytester.makepyfile(
        """
        import pytest
        @pytest.fixture
        def broken():
            raise OSError
        def test_good(): pass
        def test_bad(broken): pass
        """
    )
    monkeypatch.setenv("MUSTER_TIER_REPORT", str(tmp_path / "report"))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.runpytest_inprocess("-p", "tests.tiers.reports")
    record = read_record(tmp_path / "report")
    assert [sorted(tests) for tests in (record.passed, record.failed)] == [
        ["test_a_test_that_fails_in_its_fixture_counts_as_failed.py::test_good"],
        ["test_a_test_that_fails_in_its_fixture_counts_as_failed.py::test_bad"],
    ]

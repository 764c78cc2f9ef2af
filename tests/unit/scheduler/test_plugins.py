"""Queue orders and placement policies by name, ours and the site's, and the settings that name them."""

import ast
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from muster import scheduler_plugin
from muster.core.model.policy import Limit, PlacementPolicy, QueueView, by_arrival
from muster.core.values.errors import SettingsError
from muster.core.values.slots import Slots
from muster.service.scheduler.plugins import load_order, load_placement, needs_usage, scheduling_policy
from muster.settings import Settings, load_settings
from muster.shipped_files import ansible_root
from tests.command_line import write_settings
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

PLUGINS = ansible_root() / "plugins/scheduler"

VIEW = QueueView(NOW, Slots(), {})
SESSIONS = [make_session(number) for number in (1, 2, 3)]


@pytest.fixture
def site(tmp_path):
    directory = tmp_path / "scheduler"
    directory.mkdir()
    return directory


def names(order) -> list[str]:
    return [session.name for session in order(SESSIONS, VIEW)]


def test_ours_are_there_by_name(site):
    assert load_order("fifo", site) is by_arrival
    assert isinstance(load_placement("fragmentation", site), PlacementPolicy)
    assert [name for name in ("fifo", "lifo", "drf", "fair_share") if needs_usage(name, site)] == ["fair_share"]


def test_a_file_in_the_sites_directory_is_a_plugin_and_wins_over_ours(site):
    (site / "fifo.py").write_text(
        "def order(sessions, view):\n    return sorted(sessions, key=lambda s: -s.submitted_at)\n"
    )
    (site / "tight.py").write_text(
        "from muster.scheduler_plugin import PlacementPolicy\nPOLICY = PlacementPolicy('tight', left_over=2.0)\n"
    )
    assert names(load_order("fifo", site)) == ["s3", "s2", "s1"]
    assert load_placement("tight", site).left_over == 2.0


def test_a_plugin_that_changed_is_read_again(site):
    path = site / "mine.py"
    path.write_text("def order(sessions, view):\n    return sessions\n")
    assert names(load_order("mine", site)) == ["s1", "s2", "s3"]
    path.write_text("def order(sessions, view):\n    return sessions[::-1]\n")
    os.utime(path, (NOW, NOW))
    assert names(load_order("mine", site)) == ["s3", "s2", "s1"]


def test_the_order_of_the_docs_takes_owners_in_turn(site):
    page = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text(encoding="utf-8")
    (site / "turns.py").write_text(page.split("```python\n")[1].split("```")[0])
    queue = [make_session(number, owner=owner) for number, owner in enumerate("AAABB", 1)]
    assert [session.owner for session in load_order("turns", site)(queue, VIEW)] == ["A", "B", "A", "B", "A"]


def test_a_sites_order_can_neither_lose_nor_double_a_session(site):
    (site / "mine.py").write_text("def order(sessions, view):\n    return [sessions[1], sessions[1]]\n")
    assert names(load_order("mine", site)) == ["s2", "s1", "s3"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("order = 5\n", "mine.py is no queue order: it defines no order(sessions, view); name another plugin"),
        ("import nosuch\n", "mine.py, line 1: ModuleNotFoundError: No module named 'nosuch'; mend the file"),
        ("\ndef order(:\n", "mine.py, line 2: SyntaxError"),
        (
            "def order(sessions, view):\n    return 1 / 0\n",
            "mine.py, line 2: ZeroDivisionError: division by zero; mend",
        ),
    ],
)
def test_an_error_in_a_plugin_is_reported_in_one_line(site, text, problem):
    (site / "mine.py").write_text(text)
    with pytest.raises(SettingsError) as raised:
        names(load_order("mine", site))
    assert problem in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_without_a_policy_is_no_placement_policy(site):
    with pytest.raises(SettingsError, match=r"fifo\.py is no placement policy"):
        load_placement("fifo", site)


def test_the_settings_make_the_policy(site):
    settings = Settings.model_validate(
        {
            "scheduler_plugins": site,
            "scheduling": {"order": "drf", "preemption": True, "defragment": True},
            "resource_groups": {"gpu": {"order": "fair_share", "backfill": False, "reserve_after_passes": 3}},
            "limits": {
                "users": {"*": {"running": {"gpu": 8, "mem": "256G", "cpu": "1.5"}, "pending": {"sessions": 100}}},
                "projects": {"vision": {"running": {"fgpu": 2.5, "kernels": 4}}},
            },
            "shares": {"ada": 2},
            "hold_repaired_s": 60,
        }
    )
    policy = scheduling_policy(settings)
    assert (policy.default.preemption, policy.default.backfill, policy.default.reserve_after_passes) == (True, True, 20)
    gpu = policy.of("gpu")
    assert policy.default.defragment
    assert (gpu.preemption, gpu.backfill, gpu.reserve_after_passes) == (True, False, 3)
    assert gpu.placement == policy.default.placement == load_placement("fragmentation", site)
    assert policy.of("default").order is load_order("drf", site)
    assert policy.limits.users["*"] == Limit({"gpu": 8, "mem": 256 << 30, "cpu": 1500}, {"sessions": 100})
    assert policy.limits.projects["vision"] == Limit({"fgpu": 2500, "kernels": 4})
    assert (policy.shares, policy.hold_repaired_s) == ({"ada": 2.0}, 60.0)


def test_a_plugin_that_is_not_there_is_named_with_the_setting_and_the_choices(site):
    with pytest.raises(SettingsError) as raised:
        scheduling_policy(Settings(scheduler_plugins=site, resource_groups={"gpu": {"order": "fofo"}}))
    message = str(raised.value)
    assert message.startswith("resource_groups.gpu: there is no scheduler plugin 'fofo'; write one of drf, fair_share")
    assert f"{site}/fofo.py" in message


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"scheduling": {"ordre": "fifo"}}, "scheduling: there is no key 'ordre'; did you mean order?"),
        ({"scheduling": {"order": "../x"}}, "scheduling.order: "),
        (
            {"scheduling": {"reserve_after_passes": 0}},
            "scheduling.reserve_after_passes: 0 is too small; write 1 or more",
        ),
        ({"scheduling": ["fifo"]}, "scheduling: "),
        (
            {"limits": {"users": {"*": {"gpu": 8}}}},
            "limits.users.*: there is no key 'gpu'; use one of running, pending",
        ),
        ({"limits": {"users": {"*": {"running": {"gpus": 8}}}}}, "running: there is no key 'gpus'; did you mean gpu?"),
        ({"limits": {"users": {"*": {"running": {"mem": "much"}}}}}, "mem: 'much' is not an amount of bytes; write"),
        ({"shares": {"ada": 0}}, "shares.ada: 0 is too small; write 1e-06 or more"),
        ({"shares": {"ada": 1e-320}}, "shares.ada: 1e-320 is too small; write 1e-06 or more"),
        ({"usage_half_life_s": 0}, "usage_half_life_s: 0 is too small"),
    ],
)
def test_wrong_settings_are_refused_by_field(tmp_path, values, problem):
    with pytest.raises(SettingsError) as raised:
        load_settings(write_settings(tmp_path, values))
    assert problem in str(raised.value)


def _numbers(model: type[BaseModel], *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of each setting that is a number, or that maps names to numbers."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _numbers(type(field.default), *path, name)
        elif re.search(r"\b(int|float)\b", str(field.annotation)):
            yield (*path, name, *(["ada"] if "dict[" in str(field.annotation) else []))


@pytest.mark.parametrize("path", sorted(_numbers(Settings)), ids=".".join)
def test_a_number_that_no_clock_or_sum_can_count_is_refused(tmp_path, path):
    for number in (math.inf, -math.inf, math.nan, 1e308, 10**30):
        values: object = number
        for key in reversed(path):
            values = {key: values}
        with pytest.raises(SettingsError) as raised:
            load_settings(write_settings(tmp_path, values))
        assert f"{'.'.join(path)}: " in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("path", sorted(PLUGINS.glob("*.py")), ids=lambda path: path.stem)
def test_plugins_import_of_muster_only_the_module_that_does_not_move(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {module for module in imported if module.startswith("muster")} == {"muster.scheduler_plugin"}


def test_no_name_is_taken_away_from_what_plugins_import():
    names = {"Order", "PlacementPolicy", "QueueView", "Session", "by_arrival", "least_first"}
    assert names <= set(scheduler_plugin.__all__)

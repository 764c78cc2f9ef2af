"""Limits and share weights in force: the settings' base, and over it what administrators set while everything runs."""

import math
import shutil

import pytest

from muster.core.model.overrides import Limited
from muster.core.model.policy import Limit
from muster.core.model.wait import WaitCode
from muster.core.scheduling.schedule import schedule
from muster.core.values.errors import BadInputError, SpecError
from muster.service.scheduler.overrides import SiteLimits, SiteWeights, limit_as_written, limits_in_force
from muster.service.scheduler.site_policy import SiteScheduling
from muster.service.scheduler.views import Source
from muster.settings import Settings
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

USER = Limited.USER


@pytest.fixture
def settings(tmp_path) -> Settings:
    limits = {"users": {"ada": {"running": {"cpu": 1, "gpu": 4}}}, "projects": {"*": {"running": {"gpu": 2}}}}
    return Settings.model_validate({"state_dir": tmp_path, "limits": limits, "shares": {"ada": 2}})


@pytest.fixture
def store(empty_database, tmp_path):
    shutil.copy(empty_database, tmp_path / "muster.db")
    opened = Store(f"sqlite:///{tmp_path / 'muster.db'}")
    yield opened
    opened.close()


@pytest.fixture
def limits(store, settings) -> SiteLimits:
    return SiteLimits(store, settings)


def shown(limits: SiteLimits) -> dict[tuple[str, str], tuple[str, str]]:
    return {(one.kind.value, one.name): (one.source.value, one.sentence) for one in limits.all().items}


def test_what_is_set_replaces_the_settings_entry_as_a_whole_and_nothing_else(limits, settings, store):
    limits.set(USER, "ada", Limit(running={"gpu": 8}), "root")
    now = limits_in_force(settings, store)
    assert now.users["ada"] == Limit(running={"gpu": 8})
    assert now.projects == settings.limits.limits().projects
    assert now.users["*"] == settings.limits.limits().users["*"]
    limits.unset(USER, "ada")
    assert limits_in_force(settings, store) == settings.limits.limits()


def test_each_limit_says_where_it_comes_from(limits):
    limits.set(USER, "ada", Limit(running={"gpu": 8}), "root")
    assert shown(limits) == {
        ("user", "*"): ("default", "running any; waiting 20000 sessions, 200000 containers"),
        ("user", "ada"): ("administrator", "running 8 GPU; waiting any"),
        ("project", "*"): ("settings", "running 2 GPU; waiting any"),
    }
    ada = limits.all().items[1]
    assert ada.changed_by == "root"
    assert ada.replaces is not None
    assert ada.replaces.running.spelled == "1 CPU, 4 GPU"
    limits.unset(USER, "ada")
    assert shown(limits)["user", "ada"] == ("settings", "running 1 CPU, 4 GPU; waiting any")


def test_one_without_amounts_limits_nothing(limits, settings, store):
    limits.set(USER, "ada", Limit(), "root")
    assert limits_in_force(settings, store).users["ada"] == Limit()


def test_the_next_pass_reads_it(limits, settings, store):
    """The same object makes each pass of a daemon, which is not restarted."""
    store.agents.save([make_agent("a1")])
    session = make_session(1, owner="ada", cpu=2)
    store.add([session])
    passes = SiteScheduling(settings, store)
    waits = schedule(passes.complete(store.snapshot(NOW))).waits
    assert waits[session.id].code is WaitCode.NEVER_RUNS
    limits.set(USER, "ada", Limit(running={"cpu": 2000}), "root")
    placements = schedule(passes.complete(store.snapshot(NOW))).placements
    assert [placement.session_id for placement in placements] == [session.id]
    limits.unset(USER, "ada")
    assert session.id in schedule(passes.complete(store.snapshot(NOW))).waits


def test_share_weights_are_in_the_next_passes_policy(settings, store):
    weights, passes = SiteWeights(store, settings), SiteScheduling(settings, store)
    weights.set("bob", 3.0, "root")
    weights.set("ada", 0.5, "root")
    assert passes.policy().shares == {"ada": 0.5, "bob": 3.0}
    assert [(one.owner, one.source, one.replaces) for one in weights.all().items] == [
        ("ada", Source.ADMINISTRATOR, 2.0),
        ("bob", Source.ADMINISTRATOR, None),
    ]
    assert weights.unset("bob") is None
    back = weights.unset("ada")
    assert back is not None
    assert (back.weight, back.source) == (2.0, Source.SETTINGS)
    assert passes.policy().shares == {"ada": 2.0}


@pytest.mark.parametrize("weight", [0.0, 1e-320, -1.0, math.nan, math.inf, 1e7])
def test_a_weight_is_a_number_to_divide_by(settings, store, weight):
    with pytest.raises(BadInputError, match=r"^weight: .* is no share weight; write 0.000001 to 1000000, such as 2 or"):
        SiteWeights(store, settings).set("ada", weight, "root")
    assert store.overrides.all().weights == ()


@pytest.mark.parametrize("name", ["", "a/b", " ada", "a\nb", "n" * 256])
def test_a_name_is_one_that_a_path_of_the_api_can_hold(settings, store, limits, name):
    with pytest.raises(BadInputError, match=r"^name: .* is no name; write up to 255 characters"):
        limits.set(USER, name, Limit(), "root")
    with pytest.raises(BadInputError, match="is no name"):
        SiteWeights(store, settings).set(name, 1.0, "root")


@pytest.mark.parametrize("limit", [Limit({"gpus": 1}), Limit({}, {"cpu": -1}), Limit({"mem": 1 << 70})])
def test_amounts_that_are_none_are_refused_whoever_sends_them(limits, store, limit):
    with pytest.raises(BadInputError, match=r"^(running|pending)\.(gpus|cpu|mem): "):
        limits.set(USER, "ada", limit, "root")
    assert store.overrides.all().limits == ()


def test_amounts_are_written_as_in_the_settings():
    assert limit_as_written({"cpu": "0.5", "mem": "64G", "gpu": "2"}, {"sessions": "10"}) == Limit(
        {"cpu": 500, "mem": 64 << 30, "gpu": 2}, {"sessions": 10}
    )
    with pytest.raises(SpecError) as refused:
        limit_as_written({"cpu": "lots", "gpus": "1"}, {"mem": "?"})
    assert len(refused.value.errors) >= 2

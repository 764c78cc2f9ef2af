"""The time limit of a session that asks for none, by its resource group."""

import pytest

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import SettingsError, SpecError
from muster.service.specs.idle_bounds import with_site_bounds
from muster.settings import Settings, load_settings

HOUR = 3600
SITE = Settings.model_validate({
    "scheduling": {"default_time_limit": "12h"},
    "resource_groups": {"debug": {"default_time_limit": "1h"}},
    "idle": {"max_lifetime": "7d", "resource_groups": {"lab": {"max_lifetime": "2d"}}},
})  # fmt: skip


def limit(settings: Settings = SITE, **fields: object) -> int | None:
    spec = SessionSpec.model_validate({"name": "train", "image": "box", **fields})
    return with_site_bounds(spec, settings).time_limit


def test_a_session_without_a_time_limit_gets_its_groups_default():
    assert limit() == 12 * HOUR
    assert limit(resource_group="debug") == HOUR


def test_a_session_may_ask_for_more_than_the_default_and_for_no_more_than_the_longest_life():
    assert limit(time_limit="3d") == 72 * HOUR
    with pytest.raises(SpecError, match="longer than any session of this site lives, 7d"):
        limit(time_limit="8d")


def test_without_a_default_the_longest_life_is_the_time_limit():
    assert limit(SITE.model_copy(update={"scheduling": Settings().scheduling})) == 7 * 24 * HOUR
    assert limit(Settings()) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "scheduling: {default_time_limit: 12h}\nidle: {max_lifetime: 1h}\n",
            "default_time_limit of scheduling is longer than max_lifetime, 1h; write 1h or less",
        ),
        (
            "scheduling: {default_time_limit: 12h}\nidle: {resource_groups: {lab: {max_lifetime: 2h}}}\n",
            "default_time_limit of resource group lab is longer than max_lifetime, 2h; write 2h or less",
        ),
        ("resource_groups: {lab: {default_time_limit: soon}}\n", "resource_groups.lab.default_time_limit"),
    ],
)
def test_a_default_that_no_session_may_have_is_refused(tmp_path, text, problem):
    path = tmp_path / "muster.yml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_settings(path)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)

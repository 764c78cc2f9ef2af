"""Limits and share weights that administrators set."""

from dataclasses import replace

import pytest

from muster.core.model.overrides import Limited, LimitOverride, Overrides, WeightOverride
from muster.core.model.policy import Limit
from muster.core.values.errors import NotFoundError
from tests.strategies.values import NOW

ADA = LimitOverride(
    Limited.USER, "ada", Limit(running={"gpu": 8, "mem": 1 << 60}, pending={"sessions": 0}), "root", NOW
)
VISION = LimitOverride(Limited.PROJECT, "vision", Limit(), "eve", NOW + 0.5)
HALF = WeightOverride("ada", 0.5, "root", NOW)


def test_they_are_read_as_they_were_set(store):
    assert store.overrides.all() == Overrides()
    store.overrides.set_limit(ADA)
    store.overrides.set_limit(VISION)
    store.overrides.set_weight(HALF)
    assert store.overrides.all() == Overrides((VISION, ADA), (HALF,))


def test_the_last_one_set_counts_as_a_whole(store):
    store.overrides.set_limit(ADA)
    less = replace(ADA, limit=Limit(pending={"kernels": 5}), changed_by="eve", changed_at=NOW + 1)
    store.overrides.set_limit(less)
    store.overrides.set_weight(HALF)
    store.overrides.set_weight(replace(HALF, weight=3.0))
    assert store.overrides.all() == Overrides((less,), (replace(HALF, weight=3.0),))


def test_a_name_is_one_users_one_projects_and_one_groups(store):
    all_of_one_name = [replace(ADA, limited=limited) for limited in Limited]
    for override in all_of_one_name:
        store.overrides.set_limit(override)
    assert store.overrides.unset_limit(Limited.PROJECT, "ada") == replace(ADA, limited=Limited.PROJECT)
    assert {override.limited for override in store.overrides.all().limits} == {Limited.USER, Limited.RESOURCE_GROUP}


def test_what_is_not_set_cannot_be_unset(store):
    store.overrides.set_limit(ADA)
    store.overrides.set_weight(HALF)
    assert store.overrides.unset_limit(Limited.USER, "ada") == ADA
    assert store.overrides.unset_weight("ada") == HALF
    with pytest.raises(NotFoundError, match="no administrator has set a limit for user 'ada'"):
        store.overrides.unset_limit(Limited.USER, "ada")
    with pytest.raises(NotFoundError, match="no administrator has set a share weight for user 'ada'"):
        store.overrides.unset_weight("ada")
    assert store.overrides.all() == Overrides()

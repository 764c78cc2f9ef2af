"""A snapshot under another policy has the same sessions in the same states."""

from dataclasses import replace

from hypothesis import given

from muster.core.model.policy import SchedulingPolicy
from tests.strategies.snapshots import snapshots


@given(snapshots())
def test_under_a_policy_a_snapshot_knows_its_sessions_as_before(snapshot):
    policy = SchedulingPolicy(hold_repaired_s=7)
    for known in (lambda: None, lambda: snapshot.waiting_for_a_time, lambda: snapshot.holding):
        known()
        under, made = snapshot.under(policy, {"ada": 0.5}), replace(snapshot, policy=policy, usage={"ada": 0.5})
        assert under == made
        assert (under.pending, under.placed, under.holding) == (made.pending, made.placed, made.holding)
        assert under.waiting_for_a_time == made.waiting_for_a_time

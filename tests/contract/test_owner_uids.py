"""Uids that owners are given from a range."""

from concurrent.futures import ThreadPoolExecutor

RANGE = range(100_000, 100_004)


def test_each_owner_has_one_and_keeps_it(store):
    first = store.owner_uids.given(["bob", "ada"], RANGE)
    assert first == {"ada": 100_000, "bob": 100_001}
    assert store.owner_uids.given(["eve"], RANGE) == {"eve": 100_002}
    assert store.owner_uids.given(["bob", "ada"], RANGE) == first
    assert store.owner_uids.given(["ada"], range(5, 9)) == {"ada": 100_000}, "files are theirs by it"


def test_a_used_up_uid_range_gives_no_further_uid(store):
    assert len(store.owner_uids.given(["a", "b", "c", "d", "e"], RANGE)) == 4
    assert store.owner_uids.given(["e"], RANGE) == {}
    assert store.owner_uids.given(["a", "e"], RANGE) == {"a": 100_000}


def test_a_uid_that_the_site_gave_somebody_is_nobody_elses(store):
    assert store.owner_uids.given(["ada"], RANGE, [100_000, 100_001]) == {"ada": 100_002}


def test_what_owners_have_elsewhere_is_theirs_and_nobody_elses(store):
    store.owner_uids.given(["eve"], RANGE)
    store.owner_uids.record({"ada": 1001, "bob": 1002})
    store.owner_uids.record({"ada": 1001})
    assert store.owner_uids.given(["ada", "bob"], RANGE) == {"ada": 1001, "bob": 1002}
    # Bob's was made Carol's, and Ada got another.
    store.owner_uids.record({"carol": 1002, "ada": 1003})
    assert store.owner_uids.given(["ada", "carol", "bob"], range(0)) == {"ada": 1003, "carol": 1002}
    store.owner_uids.record({})
    assert store.owner_uids.given(["eve"], range(0)) == {"eve": 100_000}


def test_owners_who_come_at_once_get_different_ones(store):
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda number: store.owner_uids.given([f"owner-{number}"], range(1, 100)), range(24)))
    assert len({uid for uids in given for uid in uids.values()}) == 24

"""Ids of one image on engines of both kinds."""

FIRST, SECOND, THIRD, OTHER = (f"sha256:{digit * 64}" for digit in "1234")


def test_ids_of_one_configuration_mean_one_image(store):
    assert not store.image_ids.all().are_one(FIRST, SECOND)
    store.image_ids.add(FIRST, [SECOND, FIRST])
    store.image_ids.add(FIRST, [THIRD, FIRST])
    store.image_ids.add(FIRST, [THIRD, SECOND])
    ids = store.image_ids.all()
    assert all(ids.are_one(one, another) for one in (FIRST, SECOND, THIRD) for another in (FIRST, SECOND, THIRD))
    assert not ids.are_one(FIRST, OTHER)
    assert ids.config_ids == {SECOND: FIRST, THIRD: FIRST}

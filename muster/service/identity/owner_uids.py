"""As whom owners' kernels run, where the site gives each owner a uid, or where they have the one of a Unix user."""

from collections.abc import Iterable
from dataclasses import replace

from muster.core.launch.manifest import LaunchPolicy
from muster.core.values.errors import BadInputError
from muster.store.store import Store
from muster.unix_accounts import ids_of, name_of

# Below are the accounts of programs, whose files are nobody's sessions'.
_FIRST_UID_OF_PEOPLE = 1000


def with_uids(policy: LaunchPolicy, store: Store, owners: Iterable[str]) -> LaunchPolicy:
    """Return the policy with the uids of these owners; who has none yet is given one, as far as the range goes.

    With `unix_owners`, a Unix user has their own and their primary group's gid.
    """
    if policy.owner_uid_range is None:
        return policy
    unnamed = set(owners) - policy.owner_uids.keys()
    if not policy.unix_owners:
        given = store.owner_uids.given(unnamed, policy.owner_uid_range, policy.owner_uids.values())
        return replace(policy, owner_uids={**given, **policy.owner_uids})
    unix = {owner: ids for owner in unnamed if (ids := _ids_of(owner, policy))}
    unix_uids = {owner: uid for owner, (uid, _) in unix.items()}
    store.owner_uids.record(unix_uids)
    others = store.owner_uids.given(unnamed - unix.keys(), policy.owner_uid_range, policy.owner_uids.values())
    # Who was a Unix user and is unknown now, as while the name service does not answer, is not given another uid.
    given = {owner: uid for owner, uid in others.items() if uid in policy.owner_uid_range}
    return replace(
        policy,
        owner_uids={**given, **unix_uids, **policy.owner_uids},
        owner_gids={owner: gid for owner, (_, gid) in unix.items()},
    )


def _ids_of(owner: str, policy: LaunchPolicy) -> tuple[int, int] | None:
    """Return a Unix user's uid and gid; None for root, programs' accounts and uids that the site gives itself."""
    ids = ids_of(owner)
    if ids is None:
        return None
    uid, gid = ids
    if name_of(uid) != owner:
        # Another name of the same account, which is one owner: two have no uid in common.
        return None
    is_taken = uid in (policy.owner_uid_range or ()) or uid in policy.owner_uids.values()
    return None if uid < _FIRST_UID_OF_PEOPLE or gid == 0 or is_taken else ids


def check_uid(policy: LaunchPolicy, store: Store, owner: str) -> None:
    """Raise BadInputError where the owner has no uid: the range is used up, or they are a Unix user no more."""
    if policy.owner_uid_range is None or owner in with_uids(policy, store, [owner]).owner_uids:
        return
    if owner in store.owner_uids.given([owner], range(0)):
        raise BadInputError(
            f"owner: {owner} was a Unix user, whom the control node does not know at this moment; ask the administrator"
            " whether its name service answers"
        )
    raise BadInputError(
        f"owner: no uid is left for {owner} in owner_uid_range; ask the administrator to make the range larger"
    )

"""As whom owners' kernels run, where the site gives each owner a uid."""

from collections.abc import Iterable
from dataclasses import replace

from muster.core.launch.manifest import LaunchPolicy
from muster.core.values.errors import BadInputError
from muster.store.store import Store


def with_uids(policy: LaunchPolicy, store: Store, owners: Iterable[str]) -> LaunchPolicy:
    """Return the policy with the uids of these owners; who has none yet is given one, as far as the range goes."""
    if policy.owner_uid_range is None:
        return policy
    unnamed = set(owners) - policy.owner_uids.keys()
    given = store.owner_uids.given(unnamed, policy.owner_uid_range, policy.owner_uids.values())
    return replace(policy, owner_uids={**given, **policy.owner_uids})


def check_uid(policy: LaunchPolicy, store: Store, owner: str) -> None:
    """Raise BadInputError where the owner has no uid and the range is used up."""
    if owner not in with_uids(policy, store, [owner]).owner_uids and policy.owner_uid_range is not None:
        raise BadInputError(
            f"owner: no uid is left for {owner} in owner_uid_range; ask the administrator to make the range larger"
        )

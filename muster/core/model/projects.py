"""Who may name which project: shares of folders, images and limits belong to one."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from muster.core.values.errors import FieldError

DEFAULT_PROJECT = "default"
EVERYBODY = "*"
GROUP_MARK = "%"


def _no_group(_user: str, _group: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Projects:
    """The members of each project: users, `%GROUP` for a Unix group's, `*` for everybody.

    Without any entry, all projects are open to all. `in_group` says whether a user is in a Unix group.

    The project `default` is everybody's, unless it has members of its own.
    """

    members: Mapping[str, Collection[str]] = field(default_factory=dict)
    in_group: Callable[[str, str], bool] = field(default=_no_group, compare=False)

    def admit(self, user: str, project: str, only: Collection[str] = ()) -> bool:
        """Return whether the user may name the project; `only` are those that a token is for, all where it is empty."""
        if only and project not in only:
            return False
        if not self.members:
            return True
        members = self.members.get(project)
        if members is None:
            return project == DEFAULT_PROJECT
        groups = [member[1:] for member in members if member.startswith(GROUP_MARK)]
        is_named = user in members and not user.startswith(GROUP_MARK)
        return is_named or EVERYBODY in members or any(self.in_group(user, group) for group in groups)

    def of(self, user: str, only: Collection[str] = ()) -> tuple[str, ...]:
        """Return the known projects that the user may name, by name."""
        known = {DEFAULT_PROJECT, *self.members, *only}
        return tuple(sorted(project for project in known if self.admit(user, project, only)))

    def refusal(self, user: str, project: str, only: Collection[str] = ()) -> FieldError | None:
        """Return what to answer a user who names the project; it is the same whether there is such a project."""
        if self.admit(user, project, only):
            return None
        own = self.of(user, only)
        remedy = f"name one of {', '.join(own)}" if own else "ask an administrator for one"
        return FieldError("project", f"{user} has no project {project!r}", remedy)

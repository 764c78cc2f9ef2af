"""The part of the session spec that is about the owner's own folders."""

from pydantic import Field

from muster.core.spec.base import SpecModel, flag


class FolderFields(SpecModel):
    dot_folders: bool = Field(
        default=True,
        description="mount my folders whose names start with a dot, such as .local, in the home directory",
        json_schema_extra=flag("--dot-folders/--no-dot-folders"),
    )

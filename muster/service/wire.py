"""The backend's answers on their way to another machine, and back into the same values there.

Their types say how: a field that a value gains travels by itself, and what the other side does not know is left out.
"""

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from muster.core.values.errors import MusterError

MEDIA_TYPE = "application/vnd.muster.values+json"


class OtherVersionError(MusterError):
    """The server's answer is not understood: it is of another version of Muster."""


def packed(kind: Any, value: object) -> Any:  # noqa: ANN401 - a type, such as list[Session], and plain data
    return _adapter(kind).dump_python(value, mode="json")


def unpacked(kind: Any, data: object) -> Any:  # noqa: ANN401 - a value of that type
    """Raises OtherVersionError."""
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise OtherVersionError(
            f"the server's answer is not understood ({where}: {first['msg']}); use the server's version of Muster"
        ) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401
    return TypeAdapter(kind)

"""Check what roles/images is to make or pull."""

from collections.abc import Callable, Iterable, Mapping


def _source_errors(catalog: Iterable[Mapping[str, object]], most_bytes: object) -> list[str]:
    from muster.core.values.units import parse_bytes  # noqa: PLC0415 - each task with filters loads all of them anew

    errors = [
        f"images_catalog: {entry.get('name')}: {problem}"
        for entry in catalog
        if "source" in entry and (problem := _problem(entry, entry["source"]))
    ]
    try:
        parse_bytes(most_bytes)
    except ValueError as error:
        errors.append(f"images_max_size: {error}; write bytes such as 100G")
    return errors


def _problem(entry: Mapping[str, object], source: object) -> str | None:
    origins = [name for name in ("mmdebstrap", "registry") if isinstance(source, Mapping) and name in source]
    if len(origins) != 1:
        return f"its source has {'both' if origins else 'neither of'} mmdebstrap and registry; give one of them"
    if not entry.get("reference"):
        return "it has a source and no reference; give the reference, and an entry of its own to each version"
    return None


class FilterModule:
    """`catalog | muster_source_errors(most_bytes)`: a line for each source that no image can come from."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"muster_source_errors": _source_errors}

"""Write the list of the CUDA driver's functions, from the headers of NVIDIA's packages.

    pip download --no-deps nvidia-cuda-runtime-cu11==11.8.89
    pip download --no-deps nvidia-cuda-runtime-cu12==12.9.79
    pip download --no-deps nvidia-cuda-runtime==13.5.37
    python -m tests.native.list_driver_functions *.whl

A line is a function's name, the CUDA version that brought this form of it, `ptsz` if it is the twin on the per-thread
default stream, and the oldest of the packages that has it. `test_driver_functions.py` compares the hooks with the list.
For a new CUDA, download its package too, run this again, and hook what is new or say there why it needs no hook.
"""

import re
import sys
import zipfile
from pathlib import Path

LIST = Path(__file__).with_name("driver_functions.txt")
Function = tuple[str, int, str]


def functions_in(wheel: Path) -> set[Function]:
    with zipfile.ZipFile(wheel) as archive:
        (header,) = (name for name in archive.namelist() if name.endswith("/cudaTypedefs.h"))
        text = archive.read(header).decode(errors="replace")
    found = re.findall(r"\bPFN_(cu\w+?)_v(\d+)(?:_(ptsz|ptds))?\)", text)
    return {(name, int(version), "ptsz" if twin else "") for name, version, twin in found}


def version_of(wheel: Path) -> tuple[int, int]:
    major, minor = wheel.name.split("-")[1].split(".")[:2]
    return int(major), int(minor)


def main(wheels: list[str]) -> None:
    if not wheels:
        sys.exit("list_driver_functions: name the packages' files")
    since: dict[Function, str] = {}
    for wheel in sorted(map(Path, wheels), key=version_of):
        major, minor = version_of(wheel)
        for function in functions_in(wheel):
            since.setdefault(function, f"{major}.{minor}")
    lines = [
        " ".join(filter(None, (name, str(version), twin, since[name, version, twin])))
        for name, version, twin in sorted(since)
    ]
    LIST.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Whether two folders of results say the same: what a command that is run twice should give.

python -m reference.compare FIRST SECOND [--out FILE]
"""

import argparse
import json
import pathlib
import sys

from tqpo.provenance import provenance
from tqpo.reproduce.cells import read, write

OF_THE_MOMENT = {"group", "provenance"}  # when and how fast; all else must agree


def differences(first: pathlib.Path, second: pathlib.Path) -> dict[str, list[str]]:
    """Cells of either folder → the keys in which they differ; ["missing"] for one that only one folder has."""
    differing: dict[str, list[str]] = {}
    names = {p.name for folder in (first, second) for p in folder.glob("*-*.json")}
    for name in sorted(names):
        if not ((first / name).exists() and (second / name).exists()):
            differing[name] = ["missing"]
            continue
        a, b = (json.loads((folder / name).read_text()) for folder in (first, second))
        differing[name] = sorted(k for k in (set(a) | set(b)) - OF_THE_MOMENT if a.get(k) != b.get(k))
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.compare", description=__doc__)
    parser.add_argument("first", type=pathlib.Path)
    parser.add_argument("second", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="write the comparison as JSON")
    given = parser.parse_args()
    differing = differences(given.first, given.second)
    same = bool(differing) and not any(differing.values())
    for name, keys in differing.items():
        print(f"{name}: {'the same' if not keys else 'differs in ' + ', '.join(keys)}")
    if given.out:
        cells = {name: read(given.first / name) for name in differing}
        settings = {name: cell["settings"] for name, cell in cells.items() if cell}
        write(given.out, {"same": same, "differences": differing, "settings": settings, "provenance": provenance()})
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()

"""Keeps each descriptor of a folder of chips lowered beside it (torchfl.hcd.kept). Run by `cmake --install`."""

import sys
from pathlib import Path

from torchfl.hcd.kept import keep_beside

for folder in sorted(Path(sys.argv[1]).iterdir()):
    descriptor = folder / f"{folder.name}.yaml"
    if descriptor.is_file() and keep_beside(descriptor) is None:
        print(f"-- {descriptor.name} has warnings: it is read anew each time")

"""Write docs/chips/: the page of each shipped chip, from its descriptor.

python tools/chip_pages.py           # write what is out of date
python tools/chip_pages.py --check   # write nothing; status 1 if a page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from torchfl import hcd
from torchfl.hcd import Descriptor
from torchfl.pages import chip

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "chips"


def pages() -> dict[Path, str]:
    """The text that each page is to have."""
    found = {name: hcd.load(path) for name, path in chip.shipped(ROOT / "chips").items()}
    wanted = {FOLDER / f"{name}.md": chip.render(descriptor) for name, descriptor in found.items()}
    return {FOLDER / "README.md": index(found), **wanted}


def index(found: dict[str, Descriptor]) -> str:
    lines = ["# Which chips are shipped?", "", "<!-- Made by tools/chip_pages.py. -->", ""]
    lines += ["| page | chip | device | what it is |", "|---|---|---|---|"]
    for name, descriptor in found.items():
        about = descriptor.model.chip
        device = about.device_type.partition(":")[0]
        lines.append(f"| [{name}]({name}.md) | {about.name} | `{device}` | {about.description or ''} |")
    return "\n".join(lines) + "\n"


def outdated(wanted: dict[Path, str]) -> list[Path]:
    """Pages that are missing, differ, or describe no chip any more."""
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return changed + [path for path in sorted(FOLDER.glob("*.md")) if path not in wanted]


def main() -> int:
    wanted = pages()
    changed = outdated(wanted)
    if "--check" in sys.argv[1:]:
        for path in changed:
            print(f"{path.relative_to(ROOT)} is out of date: `make pages` writes it")
        return 1 if changed else 0
    FOLDER.mkdir(exist_ok=True)
    for path in changed:
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
        print(f"{path.relative_to(ROOT)}: {'written' if path in wanted else 'removed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

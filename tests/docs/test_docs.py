"""Every snippet in the documentation is run.

```python blocks run each in a process of its own; ```bash blocks run in one shell a page, in a folder that looks like
the checkout, with the project's commands on PATH. A `make` line is checked against the Makefile instead of being run
here (CI runs them). Blocks in other languages are for readers only, and a block whose first line is
`# not run: reason` is left out. A page that says `<!-- needs a device of CHIP -->` is skipped where there is none.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("chips/*/README.md")])
BLOCK = re.compile(r"^```([a-z]*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    found = [(m.group(1), m.group(2)) for m in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [text for language, text in found if language in languages and not text.lstrip().startswith("# not run")]


def environment() -> dict[str, str]:
    bin_dir = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": bin_dir + os.pathsep + os.environ["PATH"], "TORCHFL_ROOT": str(ROOT), "NO_COLOR": "1"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@functools.cache
def why_no_device(chip: str) -> str:
    """Why this chip has no device here; empty if it has."""
    command = [sys.executable, "-m", "torchfl.cli", "devices", "--chip", chip]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else ""


def needs_its_devices(page: Path) -> None:
    for chip in re.findall(r"^<!-- needs a device of (\w+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE):
        if why := why_no_device(chip):
            pytest.skip(f"no device of {chip}: {why}")


PYTHON = [(page, i, text) for page in PAGES for i, text in enumerate(blocks(page, "python"))]
SHELL = [page for page in PAGES if blocks(page, "bash", "sh", "shell")]


@pytest.mark.parametrize(("page", "index", "text"), PYTHON, ids=[f"{name(p)}-{i}" for p, i, _ in PYTHON])
def test_python_blocks_run(page: Path, index: int, text: str, tmp_path: Path) -> None:
    needs_its_devices(page)
    script = tmp_path / "block.py"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{name(page)}, python block {index + 1}:\n{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", SHELL, ids=name)
def test_shell_blocks_run(page: Path, tmp_path: Path) -> None:
    needs_its_devices(page)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = ["set -e", "set -o pipefail"]
    for text in blocks(page, "bash", "sh", "shell"):
        lines.append("(")  # a block begins in the checkout, whatever the one before it did
        for line in text.splitlines():
            words = line.removeprefix("$ ").split("#")[0].split()
            if words and words[0] == "make":
                for target in words[1:]:
                    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"no make target {target}"
                continue
            lines.append(line.removeprefix("$ "))
        lines.append("true\n)")
    # The checkout, but for what commands write: those folders begin empty.
    for entry in ROOT.iterdir():
        if entry.name not in {"build", "out", ".git", ".venv"} and not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "page.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = subprocess.run(
        ["bash", "page.sh"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, (
        f"{name(page)}:\n" + "\n".join(lines) + f"\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_every_page_is_on_the_index() -> None:
    folder = ROOT / "docs"
    index = (folder / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([^)#\s]+)", index))
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    assert pages <= listed, f"docs/README.md does not name {sorted(pages - listed)}"
    assert "chips/README.md" in listed


def test_both_readmes_show_the_same_commands() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh.md"
    assert blocks(english, "bash") == blocks(chinese, "bash")
    assert blocks(english, "python") == blocks(chinese, "python")

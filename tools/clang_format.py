"""Format, or with --check only check, every C and C++ file of the repository with the pinned clang-format."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".c", ".cc", ".cpp", ".h", ".hpp"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is not formatted")
    arguments = parser.parse_args()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in SUFFIXES]
    files = [str(path) for path in files if path.exists()]
    tool = Path(sys.executable).parent / "clang-format"
    mode = ["--dry-run", "--Werror"] if arguments.check else ["-i"]
    return subprocess.run([str(tool), *mode, "--style=file", *files], cwd=ROOT).returncode


if __name__ == "__main__":
    raise SystemExit(main())

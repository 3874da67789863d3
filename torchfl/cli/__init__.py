"""The command line: `torchfl`, and its console aliases `flagos-hcd-validate` and `torchfl-build`.

Contract: one file a command group. Importing this package, or any command, imports neither torch nor native code; a
command that needs them imports them when it runs, so that `torchfl validate` answers at once. Results go to stdout,
everything else to stderr. Exit status: 0 all right, 1 the answer is no or something failed, 2 wrong usage; `torchfl
run` passes on its script's own.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of `torchfl`."""
    from torchfl.cli.app import app

    app(prog_name="torchfl")


def validate_main() -> None:
    """Entry point of `flagos-hcd-validate`, the same as `torchfl validate`."""
    from torchfl.cli.app import single
    from torchfl.cli.descriptors import validate

    single(validate)(prog_name="flagos-hcd-validate")


def build_main() -> None:
    """Entry point of `torchfl-build`, the same as `torchfl build`."""
    from torchfl.cli.app import single
    from torchfl.cli.build import build

    single(build)(prog_name="torchfl-build")

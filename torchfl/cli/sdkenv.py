"""`torchfl sdk-env`: the environment in which a simulated SDK is found.

Contract: stdout holds assignments for the shell and nothing else, so that it can be evaluated.
"""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from torchfl.cli.console import out, out_json


class Shell(str, Enum):
    sh = "sh"
    fish = "fish"


def sdk_env(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The SDK, such as npu.")],
    shell: Annotated[Shell, typer.Option(help="Whose syntax to write; sh serves bash and zsh.")] = Shell.sh,
    as_json: Annotated[bool, typer.Option("--json", help="Print the folders instead, for a program.")] = False,
) -> None:
    """Print the lines that put a simulated SDK into the environment.

    \b
    They set <NAME>_SDK_ROOT, <NAME>_LIB_PATH and <NAME>_INCLUDE_PATH, and put its library folder into LD_LIBRARY_PATH
    and its tools into PATH.

    \b
    Examples:
      eval "$(torchfl sdk-env npu)"                   bash, zsh, sh
      torchfl sdk-env npu --shell fish | source       fish
    """
    from torchfl._paths import sdk_dir

    root = sdk_dir(name)
    own = {
        f"{name.upper()}_{what}": str(folder)
        for what, folder in (("SDK_ROOT", root), ("LIB_PATH", root / "lib"), ("INCLUDE_PATH", root / "include"))
    }
    if as_json:
        out_json({**own, "LD_LIBRARY_PATH": str(root / "lib"), "PATH": str(root / "bin")})
        return
    for line in _lines(own, root, shell):
        out(line)


def _lines(own: dict[str, str], root: Path, shell: Shell) -> list[str]:
    """`own` are the SDK's variables; library folder and tools go in front of what is there."""
    if shell is Shell.fish:

        def quoted(text: str) -> str:
            return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

        return [
            *(f"set -gx {variable} {quoted(value)}" for variable, value in own.items()),
            f"set -gx LD_LIBRARY_PATH {quoted(str(root / 'lib'))} $LD_LIBRARY_PATH",
            f"set -gx PATH {quoted(str(root / 'bin'))} $PATH",
        ]
    library, tools = (shlex.quote(str(root / part)) for part in ("lib", "bin"))
    return [
        *(f"export {variable}={shlex.quote(value)}" for variable, value in own.items()),
        # An empty entry would mean the working directory, so no colon is left when the variable was empty.
        f'export LD_LIBRARY_PATH={library}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"',
        f'export PATH={tools}":$PATH"',
    ]

"""What the processes that this one starts are told of it: the chips, their order, the names.

Contract: `remember` and `as_cuda` write environment variables, which every child inherits however it is started (spawn,
forkserver, a plain subprocess); a forked child has the engine itself. In the child `import torch` reads them
(torchfl/_autoload.py), so that workers need no line of user code. The variables are not for users, and whoever sets
TORCHFL_CHIPS goes before them. `forget` removes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from torchfl._paths import shipped_chips

#: Descriptors of the parent's chips, in its order.
PARENTS = "TORCHFL_PARENTS_CHIPS"
#: What the parent calls its device type, if it was chosen in its code.
PARENTS_NAME = "TORCHFL_PARENTS_DEVICE_NAME"
#: "1": CUDA's names mean our devices.
AS_CUDA = "TORCHFL_AS_CUDA"


def remember(descriptors: Iterable[str]) -> None:
    from torchfl import _device_name

    os.environ[PARENTS] = os.pathsep.join(descriptors)
    chosen = _device_name.requested()
    if chosen is not None:
        os.environ[PARENTS_NAME] = chosen


def forget() -> None:
    for name in (PARENTS, PARENTS_NAME):
        os.environ.pop(name, None)


def default_chips() -> tuple[list[str | Path], bool]:
    """The chips that `init` loads if it is told none: those of TORCHFL_CHIPS, else the parent's, else every shipped
    one; and whether someone has named them, so that one that cannot be loaded is an error."""
    named: list[str | Path] = [name.strip() for name in os.environ.get("TORCHFL_CHIPS", "").split(",") if name.strip()]
    if named:
        return named, True
    parents: list[str | Path] = [name for name in os.environ.get(PARENTS, "").split(os.pathsep) if name]
    if parents:
        return parents, True
    return list(shipped_chips(on_request=False).values()), False

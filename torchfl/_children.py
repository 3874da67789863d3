"""What the processes that this one starts are told of it: the chips, their order, the names.

Contract: `remember` and `as_cuda` write environment variables, which every child inherits however it is started (spawn,
forkserver, a plain subprocess); a forked child has the engine itself. In the child `import torch` reads them
(torchfl/_autoload.py), so that workers need no line of user code. The variables are not for users, and whoever sets
TORCHFL_CHIPS or another TORCHFL_DEVICE_DIR goes before them (torchfl/_registry.py). `forget` removes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

#: Descriptors of the parent's chips, in its order.
PARENTS = "TORCHFL_PARENTS_CHIPS"
#: TORCHFL_DEVICE_DIR as it was there: a child in whose environment it is another was started for other chips.
PARENTS_FOLDERS = "TORCHFL_PARENTS_DEVICE_DIR"
#: What the parent calls its device type, if it was chosen in its code.
PARENTS_NAME = "TORCHFL_PARENTS_DEVICE_NAME"
#: "1": CUDA's names mean our devices.
AS_CUDA = "TORCHFL_AS_CUDA"

#: What the parent has told, before this process tells its own children.
_inherited = os.environ.get(PARENTS, ""), os.environ.get(PARENTS_FOLDERS, "")


def remember(descriptors: Iterable[str]) -> None:
    from torchfl import _device_name

    os.environ[PARENTS] = os.pathsep.join(descriptors)
    if folders := os.environ.get("TORCHFL_DEVICE_DIR"):
        os.environ[PARENTS_FOLDERS] = folders
    chosen = _device_name.requested()
    if chosen is not None:
        os.environ[PARENTS_NAME] = chosen


def forget() -> None:
    for name in (PARENTS, PARENTS_FOLDERS, PARENTS_NAME):
        os.environ.pop(name, None)


def chips() -> list[str]:
    """Descriptors of the parent's chips; none if this process was started by no such one, or the user has chosen other
    folders since."""
    named, folders = _inherited
    if folders != os.environ.get("TORCHFL_DEVICE_DIR", ""):
        return []
    return [name for name in named.split(os.pathsep) if name]

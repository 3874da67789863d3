"""Opens the engine (`torchfl._C`), once it is sure that it fits the installed PyTorch.

Contract: a mismatch is one line that names both versions, raised before any library is opened.
"""

from __future__ import annotations

import functools
import logging
import sys
from importlib import metadata
from types import ModuleType

from torchfl.errors import VersionError

log = logging.getLogger("torchfl")

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def mismatch(installed: str | None) -> str:
    """Why the engine does not fit this version of torch; "" if it does. None: there is no torch."""
    from torchfl._paths import native_root

    native_root()  # a clear error if nothing was built
    from torchfl._build_info import TORCH_VERSION as built_for

    if installed is None:
        return f"PyTorch is not installed; this Torch-FL needs torch {_minor(built_for)}.*"
    if _minor(installed) == _minor(built_for):
        return ""
    return (
        f"this Torch-FL was built for torch {built_for}, but torch {installed} is installed: "
        f"pip install 'torch=={_minor(built_for)}.*', or rebuild Torch-FL against torch {_minor(installed)}"
    )


def check_torch_version() -> None:
    """Compare torch, as it is imported or else installed, with the one the engine was compiled for.

    Raises VersionError if torch is missing or of another minor version.
    """
    installed: str | None = getattr(sys.modules.get("torch"), "__version__", None)
    if installed is None:
        try:
            installed = metadata.version("torch")
        except metadata.PackageNotFoundError:
            installed = None
    reason = mismatch(installed)
    if reason:
        raise VersionError(reason)


@functools.cache
def engine() -> ModuleType:
    """The extension module. The first call imports torch."""
    check_torch_version()
    from torchfl import _autoload

    _autoload.engine_is_coming = True
    try:
        import torch  # noqa: F401  (its libraries must be in the process before ours)
    finally:
        _autoload.engine_is_coming = False

    from torchfl import _C

    _C.set_log(lambda level, line: log.log(_LEVELS[level], "%s", line))
    return _C

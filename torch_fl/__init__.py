"""The same package under its other name: every attribute is torchfl's."""

import torchfl as _torchfl

__version__ = _torchfl.__version__


def __getattr__(name: str) -> object:
    return getattr(_torchfl, name)


def __dir__() -> list[str]:
    return dir(_torchfl)

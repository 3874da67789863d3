"""What this package changes in PyTorch, kept so that all of it can be taken back.

Contract: every change of an object that is not ours goes through one `Patches`, which knows what was there before.
Taking back is in reverse order, so layers come off as they went on. A change that someone else has made on top of ours
stays.
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

_MISSING: Any = object()


class Patches:
    """Changes that are taken back together."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def on_undo(self, function: Callable[[], object]) -> None:
        """Have `function` called when the changes are taken back."""
        self._undo.append(function)

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module, a class or an object."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)

        def restore() -> None:
            if vars(owner).get(name, _MISSING) is not value:
                return  # someone else's by now
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(restore)

    def item(self, owner: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Set an item of a dict."""
        before = owner.get(key, _MISSING)
        owner[key] = value

        def restore() -> None:
            if owner.get(key, _MISSING) is not value:
                return
            if before is _MISSING:
                del owner[key]
            else:
                owner[key] = before

        self._undo.append(restore)

    def additions(self, owners: list[type], add: Callable[[], object]) -> None:
        """Call `add`, and know the attributes that it gives to the classes `owners`."""
        before = [set(vars(owner)) for owner in owners]
        add()
        added = [(owner, name) for owner, had in zip(owners, before, strict=True) for name in set(vars(owner)) - had]

        def restore() -> None:
            for owner, name in added:
                if name in vars(owner):
                    delattr(owner, name)

        self._undo.append(restore)

    def undo(self) -> None:
        """Take back everything."""
        while self._undo:
            self._undo.pop()()


#: Those that last until `torchfl.shutdown()`.
engine_patches = Patches()

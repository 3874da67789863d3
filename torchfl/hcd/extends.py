"""Inheritance between descriptor files.

Contract: `resolve(path, ...)` returns the canonical tree of a file with everything it inherits. One parent, named by a
path relative to the child, or by a shipped chip's name. Mappings merge deeply, the lists `ops`, `fusions` and `paths`
merge by name, other lists and single values are replaced, `key: null` deletes what the parent gave, `delete: true`
deletes a named entry, and the child wins. Each file is rewritten from its legacy form before it is merged, so shapes
may be mixed. Nodes keep the file and place they were written at: that is what `Descriptor.origins` shows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from torchfl.hcd import legacy, nodes
from torchfl.hcd.diagnostics import Note, Place, Report, did_you_mean, short_path, show
from torchfl.hcd.env import expand_text
from torchfl.hcd.nodes import Map, Node, Scalar, Seq

MAX_CHAIN = 16

#: list -> the key that names its entries
NAMED_LISTS = {"ops": "op", "instructions": "op", "fusions": "name", "paths": "kernel"}

#: Below these keys a value may be written as a list or as a mapping, so the child's form replaces the parent's.
_FREE_FORM = ("where", "dtypes")


def resolve(path: str, env: Mapping[str, str], report: Report) -> Map | None:
    """The merged tree of the file at `path`, None after an error that leaves nothing to look at."""
    return _Resolver(env, report).load(path, short_path(path), [])


def _shipped(name: str) -> Path | None:
    """The descriptor of the shipped chip of this name, if there is one."""
    from torchfl._paths import shipped_chips
    from torchfl.errors import LoadError

    try:
        return shipped_chips().get(name)
    except LoadError:  # the native part is not built
        return None


class _Resolver:
    def __init__(self, env: Mapping[str, str], report: Report) -> None:
        self.env = env
        self.report = report

    def load(self, path: str, file: str, chain: list[tuple[str, str]]) -> Map | None:
        root = nodes.read(path, file, self.report)
        if root is None:
            return None
        root = self._ungroup(legacy.normalise(root, self.report))
        chain = [*chain, (_identity(path), file)]
        extends = root.items.get("extends")
        if extends is None or (isinstance(extends, Scalar) and extends.value is None):
            return self._without_parent(root)
        parent = self._parent(path, file, extends, chain)
        if parent is None:
            self.report.incomplete = True
            return root
        return self._merge_maps(parent, root, "")

    def _parent(self, path: str, file: str, node: Node, chain: list[tuple[str, str]]) -> Map | None:
        if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value.strip():
            message = "'extends' takes one path, relative to this file, or the name of a shipped chip"
            self.report.add("HCD030", node.place, message, path="extends", width=node.width)
            return None
        text = expand_text(node, self.env, self.report)
        if text is None:
            return None
        if Path(text).is_absolute():
            message = f"the parent {show(text)} is not relative to this file"
            self.report.add("HCD030", node.place, message, path="extends", width=node.width)
            return None
        shipped = _shipped(text) if not (Path(path).parent / text).exists() else None
        parent_path = str(shipped or Path(path).parent / text)
        parent_file = short_path(str(shipped or Path(file).parent / text))
        identity = _identity(parent_path)
        seen = [i for i, _ in chain]
        if identity in seen:
            loop = [f for _, f in chain[seen.index(identity) :]] + [chain[seen.index(identity)][1]]
            message = "inheritance cycle: " + " -> ".join(loop)
            self.report.add("HCD031", node.place, message, path="extends", width=node.width)
            return None
        if len(chain) >= MAX_CHAIN:
            message = f"more than {MAX_CHAIN} files extend each other"
            self.report.add("HCD034", node.place, message, path="extends", width=node.width)
            return None
        parent = self.load(parent_path, parent_file, chain)
        if parent is None:
            message = f"the parent {show(text)} cannot be used"
            self.report.add("HCD030", node.place, message, path="extends", width=node.width)
        return parent

    def _without_parent(self, root: Map) -> Map:
        """Complains about entries that delete, as there is nothing to delete from."""
        items = dict(root.items)
        for name in ("ops", "instructions", "fusions"):
            node = items.get(name)
            if isinstance(node, Seq):
                empty = Seq(node.place, node.width, node.path)
                items[name] = self._merge_named(empty, node, NAMED_LISTS[name])
        return root.with_items(items, root.keys)

    def _ungroup(self, root: Map) -> Map:
        """An entry for several operators or instructions as one entry each, so that a child can override a single one;
        an instruction that is only named as an entry for the kernel of that name."""
        items = dict(root.items)
        for section in ("ops", "instructions"):
            node = items.get(section)
            if isinstance(node, Seq):
                items[section] = self._ungroup_list(node, named=section == "instructions")
        return root.with_items(items, root.keys)

    def _ungroup_list(self, ops: Seq, named: bool) -> Seq:
        entries: list[Node] = []
        values = 0
        for entry in ops.items:
            if named and isinstance(entry, Scalar) and isinstance(entry.value, str):
                entries.append(Map(entry.place, entry.width, entry.path, {"op": entry}, {"op": entry}))
                continue
            names = entry.items.get("op") if isinstance(entry, Map) else None
            if not isinstance(entry, Map) or not isinstance(names, Seq) or not names.items:
                entries.append(entry)
                continue
            values += len(names.items) * (sum(1 for _ in nodes.walk(entry)) - len(names.items))
            if values > nodes.MAX_NODES:
                message = f"more than {nodes.MAX_NODES} values when written as one entry per operator"
                self.report.add("HCD004", names.place, message, path=names.path)
                break
            entries += [entry.with_items({**entry.items, "op": name}, entry.keys) for name in names.items]
        return Seq(ops.place, ops.width, ops.path, entries)

    def _merge_maps(self, parent: Map, child: Map, under: str) -> Map:
        items, keys = dict(parent.items), dict(parent.keys)
        if not under:
            items.pop("extends", None)
            keys.pop("extends", None)
        for key, value in child.items.items():
            at = child.keys[key]
            old = items.get(key)
            if isinstance(value, Scalar) and value.value is None:
                if old is None:
                    hint = did_you_mean(key, parent.items)
                    self.report.add(
                        "HCD032", at.place, "null deletes nothing: the parent has no such key", path=at.path, hint=hint
                    )
                items.pop(key, None)
                keys.pop(key, None)
                continue
            items[key] = value if old is None else self._merge(old, value, key, under)
            keys[key] = at if not isinstance(items[key], Map) or old is None else keys[key]
        return Map(parent.place, parent.width, parent.path, items, keys)

    def _merge(self, old: Node, new: Node, key: str, under: str) -> Node:
        if isinstance(old, Map) and isinstance(new, Map):
            return self._merge_maps(old, new, f"{under}.{key}")
        if isinstance(old, Seq) and isinstance(new, Seq) and key in NAMED_LISTS:
            return self._merge_named(old, new, NAMED_LISTS[key])
        free = under.startswith(".x-") or key.startswith("x-") or {*under.split("."), key} & set(_FREE_FORM)
        if type(old) is not type(new) and not free:
            self.report.add(
                "HCD033",
                new.place,
                f"{nodes.kind(new)} cannot replace {nodes.kind(old)} of the parent",
                path=new.path,
                notes=[Note(old.place, "the inherited value is here")],
                width=new.width,
            )
            return old
        return new

    def _merge_named(self, parent: Seq, child: Seq, name_key: str) -> Seq:
        entries: list[Node | None] = list(parent.items)
        inherited: dict[str, list[int]] = {}
        for i, item in enumerate(parent.items):
            name = item.text(name_key) if isinstance(item, Map) else None
            if name is not None:
                inherited.setdefault(name, []).append(i)
        times = Counter(e.text(name_key) for e in child.items if isinstance(e, Map))
        for entry in child.items:
            name = entry.text(name_key) if isinstance(entry, Map) else None
            if not isinstance(entry, Map) or name is None:
                entries.append(entry)
                continue
            places = inherited.get(name, [])
            old = entries[places[0]] if places else None
            if "delete" in entry.items:
                self._check_delete(entry, name, inherited)
            elif len(places) == 1 and times[name] == 1 and isinstance(old, Map):
                entries[places[0]] = self._merge_maps(_yield_to(old, entry), entry, f".{name_key}")
                continue
            else:
                entries.append(entry)
            # Deleted, or the name stands for several entries on one side: these cannot be told apart, so the child's
            # replace all of the parent's.
            for i in places:
                entries[i] = None
        kept = [e for e in entries if e is not None]
        return Seq(parent.place if parent.items else child.place, child.width, child.path, kept)

    def _check_delete(self, entry: Map, name: str, inherited: Collection[str]) -> None:
        node, at = entry.items["delete"], entry.keys["delete"]
        if not isinstance(node, Scalar) or node.value is not True:
            self.report.add("HCD013", node.place, "'delete' is only ever 'true'", path=at.path, width=node.width)
        elif name not in inherited:
            hint = did_you_mean(name, inherited)
            message = f"nothing to delete: no parent has {show(name)}"
            self.report.add("HCD032", at.place, message, path=at.path, hint=hint, width=at.width)


def _yield_to(old: Map, new: Map) -> Map:
    """`old` without the `kernel` that the child's `paths` replace, or the other way round."""
    drop = "kernel" if "paths" in new.items else "paths" if "kernel" in new.items else None
    if drop not in old.items or drop in new.items:
        return old
    return old.with_items(
        {k: v for k, v in old.items.items() if k != drop}, {k: v for k, v in old.keys.items() if k != drop}
    )


def _identity(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def inherited_note(root_file: str, root: Map, place: Place) -> list[Note]:
    """A note for a value that stands in a parent: which line made it part of the file that was asked for."""
    extends = root.keys.get("extends")
    if place.file == root_file or extends is None:
        return []
    return [Note(extends.place, "inherited by this file")]

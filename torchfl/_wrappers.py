"""Pybind wrappers: modules whose functions carry the names of a descriptor's kernels.

Contract: a chip of style pybind has no adapter, but a vendor's library (`runtime_so`) and extension modules beside its
descriptor, or the one that `adapter.library` names. `load` opens the library first, so that the modules find it
wherever it is now, then the modules, and gives the functions that rows and fallbacks name; of several modules, the
first by name that has it. `check` does as much of it as can be done without running any code of theirs. Failures are
LoadError, and say what to change. What a function raises becomes an exception that names operator, chip and function.
"""

from __future__ import annotations

import ctypes
import difflib
import functools
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from torchfl import _elf
from torchfl.errors import LoadError

log = logging.getLogger("torchfl")

_modules: dict[Path, ModuleType] = {}  # a module can be loaded once


def modules_of(lowered: dict[str, Any]) -> list[Path]:
    """The extension modules of a chip: `adapter.library`, else those beside its descriptor and its parents'."""
    if lowered["adapter_library"]:
        return [Path(lowered["adapter_library"])]
    folders = [Path(lowered["descriptor"]).parent]
    folders += [Path(row["file"]).parent for row in lowered["ops"]]
    found = []
    for folder in dict.fromkeys(folders):
        found += [path for path in sorted(folder.glob("*.so")) if is_module(path)]
    return found


def is_module(path: Path) -> bool:
    """Whether the file is an extension module, of whatever Python."""
    library = _elf.read(path)
    return library is not None and f"PyInit_{_stem(path)}" in library.defined


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _fits(path: Path) -> bool:
    """Whether it was built for this Python, by its name."""
    return any(path.name == _stem(path) + suffix for suffix in importlib.machinery.EXTENSION_SUFFIXES)


def check(lowered: dict[str, Any]) -> None:
    """Raises LoadError for what can be seen to be wrong from the files alone."""
    runtime = lowered["adapter"]["runtime"]
    if runtime:
        _check_runtime(lowered, Path(runtime))
    for module in modules_of(lowered):
        if not module.is_file():
            raise LoadError(
                f"{lowered['name']}: the wrapper module {module} does not exist; build it (torchfl-build), or correct "
                "adapter.library"
            )
        if runtime:
            _check_symbols(lowered, module, Path(runtime))


def _check_runtime(lowered: dict[str, Any], runtime: Path) -> None:
    if not runtime.exists():
        raise LoadError(
            f"{lowered['name']}: failed to load {runtime.name}: {runtime} does not exist. Correct runtime_so in "
            f"{lowered['descriptor']}, or the variable in it"
        )


def _check_symbols(lowered: dict[str, Any], module: Path, runtime: Path) -> None:
    needs, has = _elf.read(module), _elf.read(runtime)
    if needs is None or has is None:
        return
    own = {name.partition("_")[0] + "_" for name in has.defined if re.match(r"[A-Za-z][A-Za-z0-9]*_", name)}
    missing = sorted(n for n in needs.undefined - has.defined if n.startswith(tuple(own)))
    if missing and (not needs.needed or _is_needed(needs, has, runtime)):
        raise LoadError(_missing_symbol(lowered, module, runtime, missing[0]))


def _is_needed(needs: _elf.Library, has: _elf.Library, runtime: Path) -> bool:
    return bool({has.soname, runtime.name} & {Path(name).name for name in needs.needed})


def _missing_symbol(lowered: dict[str, Any], module: Path, runtime: Path, symbol: str) -> str:
    has = _elf.read(runtime)
    family = symbol.rpartition("_")[0] or symbol
    known = has.defined if has else set()
    near = sorted(n for n in known if n == family or n.startswith(family)) or difflib.get_close_matches(symbol, known)
    version = lowered["adapter"]["driver_version"]
    return (
        f"{lowered['name']}: failed to load {runtime.name}: undefined symbol: {symbol}. {module.name} calls it, and "
        f"{runtime}{_version_text(runtime)} does not have it"
        + (f" (it has {', '.join(near[:5])})" if near else "")
        + (f"; the descriptor was written for version {version}" if version else "")
        + f". Look with `nm -D {runtime} | grep {family}`; then point runtime_so at the version of the SDK that the "
        f"module was built against, or build the module against this one: "
        f"torchfl-build --name {_stem(module)} --sources ... --link {runtime}"
    )


_VERSION = re.compile(rb"(?<![0-9.])([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})(?![0-9.])\0")


def _version_text(runtime: Path) -> str:
    """What the library seems to call its version: the one text in it that looks like one."""
    try:
        found = {text.decode() for text in _VERSION.findall(runtime.read_bytes())}
    except OSError:
        return ""
    return f" (version {found.pop()})" if len(found) == 1 else ""


# ---------------------------------------------------------------------------------------------- loading


def load(lowered: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], list[Path]]:
    """The functions by kernel name, as the engine takes them, and the modules they come from."""
    check(lowered)
    if lowered["adapter"]["runtime"]:
        _open(lowered, Path(lowered["adapter"]["runtime"]))
    found: dict[str, dict[str, Any]] = {}
    modules = []
    for path in modules_of(lowered):
        if not _fits(path):
            log.warning(
                "%s: %s was built for another Python than this %s and is passed over; build it again with torchfl-build",
                *(lowered["name"], path, ".".join(map(str, sys.version_info[:2]))),
            )
            continue
        module = _import(lowered, path)
        modules.append(path)
        for name in _names(lowered):
            function = getattr(module, name, None)
            if callable(function) and name not in found:
                found[name] = {"function": function, "source": str(path), **signature(function)}
    if not modules:
        folder = Path(lowered["descriptor"]).parent
        log.warning(
            "%s: there is no wrapper module in %s, so nothing runs on the chip: build one with torchfl-build --name %s "
            "--sources ... --link %s",
            *(lowered["name"], folder, f"{lowered['variant'] or lowered['device_type']}_wrapper"),
            lowered["adapter"]["runtime"] or "...",
        )
    return found, modules


def _names(lowered: dict[str, Any]) -> list[str]:
    """The kernels that the descriptor names: in rows, and for fallbacks."""
    rows = [row["kernel"] for part in ("ops", "instructions", "fusions") for row in lowered[part]]
    return list(dict.fromkeys(rows + [choice for choice in lowered["fallback"]["ops"].values() if is_kernel(choice)]))


def is_kernel(choice: str) -> bool:
    """Whether a choice in `fallback.ops` is a kernel's name: no path, no Python function, not the bridge."""
    return choice not in ("compose", "cpu", "error", "onnxruntime") and ":" not in choice


@functools.cache
def _opened(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def _open(lowered: dict[str, Any], runtime: Path) -> None:
    try:
        _opened(os.fspath(runtime))
    except OSError as error:
        text = str(error).removeprefix(f"{runtime}: ")
        fix = "put the folders of what it needs into LD_LIBRARY_PATH" if "cannot open shared" in text else (
            f"look with `nm -D {runtime}` and `ldd {runtime}` for what it needs and whether this machine has it"
        )
        raise LoadError(f"{lowered['name']}: failed to load {runtime.name}: {text}; {fix}") from error


def _import(lowered: dict[str, Any], path: Path) -> ModuleType:
    if path in _modules:
        return _modules[path]
    if path.stat().st_mode & 0o002:
        raise LoadError(f"{path} is writable by everyone, so it is not loaded: chmod o-w {path}")
    loader = importlib.machinery.ExtensionFileLoader(_stem(path), str(path))
    spec = importlib.util.spec_from_file_location(_stem(path), path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise LoadError(_import_failed(lowered, path, str(error))) from error
    _modules[path] = module
    return module


def _import_failed(lowered: dict[str, Any], path: Path, text: str) -> str:
    symbol = re.search(r"undefined symbol: (\S+)", text)
    runtime = lowered["adapter"]["runtime"]
    if symbol and symbol.group(1).startswith("_Z"):
        fix = "it was built for another PyTorch: build it again with torchfl-build"
    elif symbol and runtime:
        return _missing_symbol(lowered, path, Path(runtime), symbol.group(1))
    elif "cannot open shared object" in text:
        fix = "put the library's folder into LD_LIBRARY_PATH, or build the module again with --link and its path"
    else:
        fix = "build it again with torchfl-build"
    return f"{lowered['name']}: failed to load {path.name}: {text}; {fix}"


# ---------------------------------------------------------------------------------------------- functions


def signature(function: Any) -> dict[str, Any]:
    """What the engine needs of a function's parameters, from the first line that pybind writes into its docstring.
    `parameters` is -1 where nothing is known (overloads, or no such line)."""
    unknown = {"parameters": -1, "takes_tensor": []}
    line = (getattr(function, "__doc__", None) or "").partition("\n")[0]
    written = re.fullmatch(r"\w+\((.*)\) -> .+", line.strip())
    if written is None:
        return unknown
    parameters = [p for p in _split(written.group(1)) if p not in ("*", "/")]
    if any(p.startswith("*") for p in parameters):
        return unknown
    types = [p.partition(":")[2].partition("=")[0].strip() for p in parameters]
    return {"parameters": len(types), "takes_tensor": [kind == "torch.Tensor" for kind in types]}


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


_KEPT = (RuntimeError, TypeError, ValueError, IndexError, KeyError, MemoryError, OverflowError, ArithmeticError)
_DTYPES = {"Float": "float32", "Half": "float16", "Double": "float64", "BFloat16": "bfloat16", "Char": "int8"}
_DTYPES |= {"Byte": "uint8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool"}


def told(
    error: BaseException, op: str, device: str, chip: str, function: str, source: str, args: Iterable[Any]
) -> BaseException:
    """The exception that the caller gets for what a wrapper raised."""
    if not isinstance(error, Exception):
        return error  # an interrupt, or the end of the process
    text = str(error).partition("\nException raised from")[0].strip()
    where = f"{op} on {device} ({chip}): {function} of {Path(source).name}"
    dtypes = re.search(r"expected scalar type (\w+) but found (\w+)", text)
    if isinstance(error, TypeError) and "incompatible function arguments" in text:
        given = ", ".join("None" if a is None else type(a).__name__ for a in args)
        takes = next((line.strip()[3:] for line in text.splitlines() if line.strip().startswith("1. ")), "other ones")
        text = f"does not take the operator's arguments. It was given ({given}), and takes {takes}"
    else:
        text = f"raised {type(error).__name__}: {text}"
    if dtypes:
        wanted, found = (_DTYPES.get(name, name) for name in dtypes.groups())
        text += (
            f". It reads {wanted} and was given {found}: have it look at scalar_type(), or take {found} out of the "
            f"dtype_support of {op} in the descriptor"
        )
    kind = type(error) if type(error) in _KEPT else RuntimeError
    made = kind(f"{where} {text}")
    made.__cause__ = error
    return made


def known_fallbacks(lowered: dict[str, Any], functions: Iterable[str]) -> dict[str, Any]:
    """The descriptor without the fallbacks whose function does not exist; one warning says what happens instead."""
    choices = dict(lowered["fallback"]["ops"])
    missing = {op: choice for op, choice in choices.items() if is_kernel(choice) and choice not in set(functions)}
    if not missing:
        return lowered
    default = lowered["fallback"]["default"]
    instead = {"cpu": "go to the CPU", "error": "raise an error"}.get(default, "are composed, or go to the CPU")
    log.warning(
        "%s: fallback_policy names %s, and no wrapper module beside %s has a function of that name: those operators %s "
        "(fallback default: %s). Add the function, or take the entry out",
        *(lowered["name"], ", ".join(f"{choice} for {op}" for op, choice in missing.items())),
        *(Path(lowered["descriptor"]).name, instead, default),
    )
    kept = {op: choice for op, choice in choices.items() if op not in missing}
    return {**lowered, "fallback": {**lowered["fallback"], "ops": kept}}

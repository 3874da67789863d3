"""Compiles and links adapters: the compilers, what has to be built again, and errors in plain words.

Contract: `build` brings one shared library up to date and says what it did. A step runs again only if its command line,
its compiler, or one of the files that it read (the headers too) changed. The library is put in place in one step, so a
process that has the old one loaded goes on. Failure raises BuildError, whose text is the compiler's own followed by
what it means and what to do.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from torchfl.errors import LoadError

C_SUFFIXES = (".c",)
CXX_SUFFIXES = (".cpp", ".cc", ".cxx")


class BuildError(LoadError):
    """An adapter could not be built. `complete`: the text says itself what is an error and what is a fix."""

    def __init__(self, text: str, complete: bool = False) -> None:
        super().__init__(text)
        self.complete = complete


@dataclass
class Target:
    """One shared library. `torch` says that the sources use PyTorch's C++ headers."""

    name: str
    library: Path
    sources: list[Path]
    folder: Path  # for objects
    includes: list[Path] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # files, folders (-L...) and names (-l...), in order
    std: str | None = None
    torch: bool = False


@dataclass
class Done:
    """What `build` did."""

    library: Path
    compiled: list[Path]
    linked: bool


def build(target: Target, echo: Callable[[str], None] = lambda line: None) -> Done:
    """Bring `target` up to date; `echo` is told each command before it runs."""
    for source in target.sources:
        if not source.is_file():
            raise BuildError(f"{source}: there is no such file")
    target.folder.mkdir(parents=True, exist_ok=True)
    steps = [_compile_step(target, source) for source in target.sources]
    stale = [step for step in steps if step.is_stale()]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(lambda step: step.run(echo), stale))
    failures = [text for text in outcomes if text is not None]
    if failures:
        raise BuildError("\n".join(failures), complete=True)
    link = _link_step(target, [step.output for step in steps])
    linked = bool(stale) or link.is_stale()
    if linked:
        failure = link.run(echo)
        if failure is not None:
            raise BuildError(failure, complete=True)
    return Done(target.library, [step.source for step in stale], linked)


# ---------------------------------------------------------------------------------------------- steps


@dataclass
class _Step:
    """One run of the compiler. `stamp` remembers the command and the state of every file that was read."""

    command: list[str]
    output: Path
    stamp: Path
    source: Path
    inputs: list[Path] = field(default_factory=list)
    depfile: Path | None = None
    allow: re.Pattern[str] | None = None  # undefined symbols that the process will have

    def is_stale(self) -> bool:
        try:
            known = json.loads(self.stamp.read_text(encoding="utf-8"))
            same_command = known["command"] == self._identity()
            return not (
                self.output.is_file() and same_command and all(_state(f) == s for f, s in known["files"].items())
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return True

    def run(self, echo: Callable[[str], None]) -> str | None:
        """Returns the text of the failure, or None."""
        echo(shlex.join(self.command))
        self.stamp.unlink(missing_ok=True)
        fresh = self.output.with_name(self.output.name + ".new")
        command = [str(fresh) if word == str(self.output) else word for word in self.command]
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env={**os.environ, "LC_ALL": "C"}
        )
        said = ran.stderr.replace(str(fresh), str(self.output))
        if ran.returncode == 0 and self.allow is not None:
            said = "\n".join(line for line in said.splitlines() if not self.allow.search(line))
            said = said if "undefined reference" in said else ""
        if ran.returncode != 0 or (self.allow is not None and said):
            fresh.unlink(missing_ok=True)
            return explain(said.rstrip(), self)
        if said.strip():
            echo(said.rstrip())
        fresh.replace(self.output)
        files = [*self.inputs, *_read_depfile(self.depfile)]
        states = {str(file): _state(str(file)) for file in files}
        self.stamp.write_text(json.dumps({"command": self._identity(), "files": states}), encoding="utf-8")
        return None

    def _identity(self) -> list[str]:
        compiler = shutil.which(self.command[0]) or self.command[0]
        return [*self.command, str(Path(compiler).resolve()), str(_state(compiler))]


def _state(file: str) -> list[int] | None:
    try:
        info = Path(file).stat()
    except OSError:
        return None
    return [info.st_mtime_ns, info.st_size]


def _read_depfile(path: Path | None) -> list[Path]:
    """The files that a compilation read, from the make rule that -MD wrote."""
    if path is None or not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    words = re.findall(r"(?:\\ |\S)+", text.partition(": ")[2])
    return [Path(word.replace("\\ ", " ").replace("$$", "$")) for word in words]


def _compile_step(target: Target, source: Path) -> _Step:
    cxx = source.suffix in CXX_SUFFIXES
    if not cxx and source.suffix not in C_SUFFIXES:
        known = ", ".join(C_SUFFIXES + CXX_SUFFIXES)
        raise BuildError(f"{source}: do not know how to compile this; known are {known}")
    # Sources of one name in several folders do not share an object.
    output = target.folder / f"{source.stem}_{zlib.crc32(str(source.absolute()).encode()):08x}.o"
    depfile = output.with_suffix(".d")
    std = target.std or ("c++20" if target.torch else "c++17" if cxx else "c11")
    command = [*compiler(cxx), f"-std={std}", "-O2", "-g1", "-fPIC", "-fvisibility=hidden"]
    # A callback seldom needs all that it is given.
    command += ["-Wall", "-Wextra", "-Wno-unused-parameter"]
    for folder in target.includes:
        command += ["-I", str(folder)]
    if target.torch:
        command += torch_flags(target.name)
    command += ["-MD", "-MF", str(depfile), "-c", str(source), "-o", str(output)]
    return _Step(command, output, output.with_suffix(".json"), source, [source], depfile)


def _link_step(target: Target, objects: list[Path]) -> _Step:
    cxx = target.torch or any(source.suffix in CXX_SUFFIXES for source in target.sources)
    command = [
        *compiler(cxx),
        "-shared",
        "-o",
        str(target.library),
        *map(str, objects),
        "-Wl,--as-needed",
        *target.links,
    ]
    allow = None
    if target.torch:
        library = torch_root() / "lib"
        command += [f"-L{library}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
        # Python's own symbols come from the interpreter, which is no library. Everything else must be found now.
        command += ["-Wl,-z,defs", "-Wl,--warn-unresolved-symbols"]
        allow = re.compile("undefined references? to [`'\"]_?Py")
    else:
        command += ["-lm", "-Wl,-z,defs"]
    stamp = target.folder / f"{target.library.name}.json"
    files = [Path(word) for word in target.links if not word.startswith("-")]
    return _Step(command, target.library, stamp, target.library, [*objects, *files], allow=allow)


def compiler(cxx: bool) -> list[str]:
    """The compiler's command: $CC or $CXX, else the first one found."""
    variable, names = ("CXX", ("c++", "g++", "clang++")) if cxx else ("CC", ("cc", "gcc", "clang"))
    words = shlex.split(os.environ.get(variable, ""))
    if words:
        if shutil.which(words[0]) is None:
            raise BuildError(f"the compiler '{words[0]}' of ${variable} was not found; correct the variable")
        return words
    for name in names:
        if shutil.which(name):
            return [name]
    kind = "C++" if cxx else "C"
    raise BuildError(f"no {kind} compiler was found ({', '.join(names)}); install gcc or clang, or set ${variable}")


# ---------------------------------------------------------------------------------------------- PyTorch's headers


def torch_root() -> Path:
    """PyTorch's folder, found without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("PyTorch is not installed, and these sources need its headers; an adapter on uba.h does not")
    return Path(spec.origin).parent


def torch_flags(name: str) -> list[str]:
    """What PyTorch's headers and pybind11 need. System folders: their warnings are not the user's."""
    import sysconfig

    include = torch_root() / "include"
    python = Path(sysconfig.get_paths()["include"])
    flags = [f"-DTORCH_EXTENSION_NAME={name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    for folder in (include, include / "torch/csrc/api/include", python):
        flags += ["-isystem", str(folder)]
    return flags


# ---------------------------------------------------------------------------------------------- errors

_HEADER = re.compile(r"^(\S+?:\d+):\d+: fatal error: '?([^':]+)'?(?:: No such file or directory| file not found)", re.M)
_SYMBOL = re.compile(
    r"^(?:\S*ld(?:\.\w+)?: )?(\S+?):((?:\d+|\(\S+?\))):\s*(?:warning: )?undefined reference to [`'](.+?)'", re.M
)
_LIBRARY = re.compile(r"cannot find (?:-l)?(\S+?)(?::|$)", re.M)
_MOST = 10


def explain(said: str, step: _Step) -> str:
    """The compiler's text, and below it what it means and what to do."""
    lines = [said] if said else []
    for place, header in dict.fromkeys(_HEADER.findall(said)):
        lines += [f"error: {place}: the header {header} was not found", f"fix: {_header_fix(header)}"]
    symbols: dict[str, str] = {}
    for file, where, symbol in _SYMBOL.findall(said):
        symbols.setdefault(symbol, f"{file}:{where}")
    for symbol, place in list(symbols.items())[:_MOST]:
        lines.append(f"error: {place}: no library or source given defines {symbol}")
    if len(symbols) > _MOST:
        lines.append(f"error: ... and {len(symbols) - _MOST} more such symbols")
    if symbols:
        lines.append(
            "fix: name the library that has it with --link path/to/libsdk.so, or in the descriptor as adapter.runtime "
            "or adapter.sdk; or correct the function's name"
        )
    for library in dict.fromkeys(_LIBRARY.findall(said)):
        lines += [f"error: the library {library} was not found", "fix: give its full path: --link path/to/libsdk.so"]
    if len(lines) == (1 if said else 0):
        lines.append(f"error: {step.source}: {step.command[0]} failed; its own words stand above")
    return "\n".join(lines)


def _header_fix(header: str) -> str:
    if header == "Python.h":
        return "install Python's headers (Debian: apt install python3-dev)"
    if header.startswith("torchfl/"):
        return "it comes with Torch-FL: in a checkout run `make venv`; else reinstall flagos-torchfl"
    if header.startswith(("torch/", "ATen/", "c10/")):
        return "these sources use PyTorch: build with --style aten"
    simulated = _simulated_sdk_with(header)
    if simulated:
        root = f"{simulated.upper()}_SDK_ROOT"
        return (
            f'it belongs to the simulated SDK {simulated}: eval "$(torchfl sdk-env {simulated})", then build with '
            f'--include "${root}/include", or with adapter.sdk: "${{{root}}}" in the descriptor'
        )
    return "name its folder with --include DIR, or in the descriptor: adapter.sdk (holds include/) or adapter.header"


def _simulated_sdk_with(header: str) -> str | None:
    from torchfl._paths import native_root

    try:
        found = sorted((native_root() / "_sdk").glob(f"*/include/{header}"))
    except (LoadError, ValueError):
        return None
    return found[0].relative_to(native_root() / "_sdk").parts[0] if found else None

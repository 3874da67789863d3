"""`torchfl build` and `torchfl-build`: an adapter, from its sources.

Contract: two ways to say what to build. A chip's folder: everything is taken from its descriptor. `--name` with
`--sources`: everything is on the command line. The work is toolchain.py's.
"""

from __future__ import annotations

import os
import re
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from torchfl.cli.chips import in_folder
from torchfl.cli.console import note, out, out_json, plural
from torchfl.errors import LoadError

_TORCH = re.compile(
    r"#\s*include\s*[<\"](?:torch/|ATen/|c10/|torchfl/uba_aten\.h)|TORCH_EXTENSION_NAME|PYBIND11_MODULE"
)


class Style(str, Enum):
    c = "c"
    aten = "aten"
    pybind = "pybind"


def build(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A chip's folder; by default this one.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Build a library of this name instead.")] = None,
    sources: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="A source. May be repeated.")] = None,
    link: Annotated[
        list[str] | None, typer.Option(metavar="LIB", help="A library: a file, or a name. May be repeated.")
    ] = None,
    include: Annotated[
        list[Path] | None, typer.Option("--include", "-I", metavar="DIR", help="A header folder.")
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="STD", help="The language's version, such as c++20.")] = None,
    style: Annotated[
        Style | None,
        typer.Option(help="c: on uba.h. aten, pybind: with PyTorch's headers. By default seen from the sources."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where the library goes.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the commands.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was built as one object.")] = False,
) -> None:
    """Compile an adapter; only what changed since the last time.

    \b
    In a chip's folder the descriptor says what is needed: adapter.library is what to build (by default
    libuba_<device type>.so, of style pybind a module called like its source), adapter.sdk where include/ and lib/ are, adapter.runtime the one library to link,
    adapter.header a header of the SDK. Sources are the *.c and *.cpp in it and in its src/.
    With --name, a C++ source becomes NAME.cpython-*.so, which PyTorch's Python can import too. Headers are also looked
    for in include/ beside a library given by --link.
    $CC and $CXX choose the compilers.

    \b
    Examples:
      torchfl build mychip
      torchfl build mychip -v --link /opt/vendor/lib/libvendor.so --include /opt/vendor/include
      torchfl-build --name x1_wrapper --sources x1_wrapper.cpp --link /opt/sparkai/x1_runtime.so
    """
    from torchfl.cli import toolchain

    if name is not None or sources:
        if folder is not None:
            raise typer.BadParameter("give a folder, or --name with --sources, not both", param_hint="DIR")
        if name is None or not sources:
            raise typer.BadParameter("--name and --sources belong together", param_hint="--name")
        if not name.isidentifier():
            raise typer.BadParameter(f"'{name}' is not a name of letters, digits and underscores", param_hint="--name")
        target = _from_flags(name, sources, style, output or Path())
    else:
        target = _from_folder(folder or Path(), style, output)
    target.includes = [*(include or []), *target.includes, *_beside(link or [])]
    target.links = [word for given in link or [] for word in _link_words(given)] + target.links
    target.std = std
    began = time.monotonic()
    done = toolchain.build(target, note if verbose else lambda line: None)
    if as_json:
        out_json({"library": str(done.library), "compiled": [str(s) for s in done.compiled], "linked": done.linked})
    elif done.linked:
        files = plural(len(done.compiled), "file")
        out(f"{done.library}: built ({files} compiled, {time.monotonic() - began:.1f} s)")
    else:
        out(f"{done.library}: nothing to do")


def _from_flags(name: str, sources: list[Path], style: Style | None, output: Path) -> Any:
    from torchfl.cli.toolchain import Target

    torch = style is not Style.c if style else _uses_torch(sources)
    suffix = _module_suffix() if torch else ".so"
    return Target(name, output / (name + suffix), sources, Path("build") / name, [include_dir()], torch=torch)


def _from_folder(folder: Path, style: Style | None, output: Path | None) -> Any:
    from torchfl import hcd
    from torchfl.cli.toolchain import C_SUFFIXES, CXX_SUFFIXES, Target

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="DIR")
    lowered = hcd.load(in_folder(folder)).lower()
    places = [folder, folder / "src"]
    sources = sorted(f for p in places if p.is_dir() for f in p.iterdir() if f.suffix in C_SUFFIXES + CXX_SUFFIXES)
    if not sources:
        raise LoadError(f"{folder}: no source (*.c, *.cpp) in this folder or its src/")
    declared = style or (Style(lowered["adapter"]["style"]) if lowered["adapter"]["style"] else None)
    library = Path(lowered["adapter_library"] or _library_name(lowered, declared, sources)).name
    target = Target(
        name=library.split(".")[0],
        library=(output or Path(lowered["adapter_library"] or folder / library).parent) / library,
        sources=sources,
        folder=folder / "build",
        includes=[include_dir()],
        torch=declared is Style.aten or (declared is not Style.c and _uses_torch(sources)),
    )
    target.library = Path(os.path.relpath(target.library)) if output is None else target.library
    _add_sdk(target, lowered, folder)
    return target


_MODULE = re.compile(r"PYBIND11_MODULE|PyMODINIT_FUNC")


def _library_name(lowered: dict[str, Any], style: Style | None, sources: list[Path]) -> str:
    """By default: an adapter is called by its chip, a wrapper module like the source that makes it one."""
    modules = [s for s in sources if _MODULE.search(s.read_text(encoding="utf-8", errors="replace"))]
    if style is Style.pybind and modules:
        return modules[0].stem + _module_suffix()
    return f"libuba_{lowered['device_type']}.so"


def _module_suffix() -> str:
    import sysconfig

    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def _add_sdk(target: Any, lowered: dict[str, Any], folder: Path) -> None:
    """What the descriptor says of the SDK: its root, its one runtime library, a header."""
    adapter = lowered["adapter"]
    if adapter["header"]:
        header = Path(adapter["header"])
        target.includes.append(header if header.is_dir() else header.parent)
    if adapter["runtime"]:
        target.links += _link_words(adapter["runtime"])
    if not lowered["sdk"]:
        return
    root = folder.absolute() / lowered["sdk"]
    if not root.is_dir():
        raise LoadError(f"{lowered['descriptor']}: adapter.sdk: {root} is not a folder; correct it, or its variable")
    target.includes.append(root / "include" if (root / "include").is_dir() else root)
    if not adapter["runtime"]:
        # The linker takes of these only what is used. A versioned name is the same library again.
        for library in sorted((root / "lib").glob("lib*.so")):
            target.links += _link_words(str(library))


def _link_words(given: str) -> list[str]:
    """The linker's words for a library. A file is found again at run time where it is now."""
    path = Path(given)
    if path.is_file():
        absolute = path.absolute()
        return [str(absolute), f"-Wl,-rpath,{absolute.parent}"] if absolute.suffix != ".a" else [str(absolute)]
    if given.startswith(("-l", "-L", "-Wl,")):
        return [given]
    if "/" in given or ".so" in given or given.endswith(".a"):
        raise LoadError(f"--link {given}: there is no such file")
    return [f"-l{given}"]


def _beside(links: list[str]) -> list[Path]:
    """Where SDKs keep the headers of a library: in the include/ beside it, or beside its folder."""
    folders = [Path(link).absolute().parent for link in links if Path(link).is_file()]
    places = [place / "include" for folder in folders for place in (folder, folder.parent)]
    return [place for place in dict.fromkeys(places) if place.is_dir() and place != Path("/usr/include")]


def _uses_torch(sources: list[Path]) -> bool:
    return any(s.is_file() and _TORCH.search(s.read_text(encoding="utf-8", errors="replace")) for s in sources)


def include_dir() -> Path:
    """The folder with torchfl/uba.h. In a checkout whose native part is not built yet, the checkout's own."""
    from torchfl._paths import get_include

    try:
        return Path(get_include())
    except LoadError:
        checkout = Path(__file__).parents[2] / "include"
        if (checkout / "torchfl" / "uba.h").is_file():
            return checkout
        raise

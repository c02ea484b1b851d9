"""The stub libraries: compiled on first use with the system's compiler, kept in a cache.

Each takes the place of one real library: the runtime, cuBLAS, cuBLASLt, cuFFT, cuSOLVER, cuSPARSE,
NCCL, the driver and NVML. What matters is written in `native/*.c`; every other function that the
real library exports (or, for the driver, that PyTorch and Triton ask for) is accepted and returns
0, which means success; those of cuFFT, cuSOLVER, cuSPARSE, NVML and NCCL fail. No CUDA headers or
toolkit are needed. cuDNN alone stays the real one: a few of its functions have a stub before
them (`native/cudnn.c`).

The cache is `$XDG_CACHE_HOME/vrambudget/virtual_gpu/<torch>-<hash of sources and real libraries>`.
It is built in a folder of its own and renamed into place, so that two rehearsals at once don't
disturb each other. Only what this user built, unchanged since, is loaded (`private_cache`).
"""

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vrambudget.errors import VramBudgetError
from vrambudget.files import cache_folder
from vrambudget.rehearse.elf import c_names, read_library
from vrambudget.rehearse.private_cache import is_whole, make_private, seal, usable
from vrambudget.rehearse.torch_build import TorchBuild

NATIVE = Path(__file__).parent / "native"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC")
HIDDEN = "-fvisibility=hidden"
CUDNN = "libvrambudget_cudnn.so"

_NOT_SUPPORTED = 3  # NVML_ERROR_NOT_SUPPORTED
_INVALID_USAGE = 5  # ncclInvalidUsage
_NOT_HERE = {"libcufft": 16, "libcusolver": 9, "libcusparse": 10}  # ..._NOT_SUPPORTED of each
_DRIVER_NAME = r"cu[A-Z][A-Za-z0-9]{3,60}(?:_v\d)?"
# Called by name from compiled kernels and by libraries that no list below covers.
_DRIVER_ALWAYS = (
    "cuInit",
    "cuCtxSynchronize",
    "cuCtxSetCurrent",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuModuleUnload",
    "cuFuncSetAttribute",
    "cuFuncSetCacheConfig",
    "cuStreamSynchronize",
    "cuMemGetAddressRange_v2",
    "cuMemRetainAllocationHandle",  # of SGLang's kernels
    "cuTensorMapEncodeTiled",
)


@dataclass(frozen=True, slots=True)
class _Part:
    """One library to build: its soname, its sources, the functions that its users may call."""

    soname: str
    sources: tuple[str, ...]
    functions: frozenset[str]
    answer: int = 0  # of the functions that are accepted and do nothing
    version_node: str | None = None  # PyTorch binds to e.g. cudaMalloc@libcudart.so.13


def stub_libraries(
    build: TorchBuild, say: Callable[[str], None] = lambda _: None
) -> tuple[Path, ...]:
    """Return the libraries for that PyTorch, in the order to load them; build them if need be."""
    folder = cache_folder() / "virtual_gpu" / f"{build.version}-{_fingerprint(build)}"
    for private in (cache_folder(), folder.parent):
        make_private(private)
    if not is_whole(folder):
        say(f"building the virtual GPU for PyTorch {build.version} (once)")
        _build_into(folder, build)
    real = (build.runtime.soname, build.cublas_lt.soname, build.cublas.soname)
    nccl = (build.nccl.soname,) if build.nccl else ()
    unknown_workspaces = (library.soname for library in build.unknown_workspaces)
    before_cudnn = (CUDNN,) if build.cudnn else ()
    drivers = ("libcuda.so.1", "libnvidia-ml.so.1")
    return tuple(
        folder / name for name in (*real, *unknown_workspaces, *nccl, *before_cudnn, *drivers)
    )


def _fingerprint(build: TorchBuild) -> str:
    digest = hashlib.sha256()
    for source in (*sorted(NATIVE.iterdir()), Path(__file__)):
        digest.update(source.read_bytes())
    for library in (build.runtime, build.cublas, build.cublas_lt, *build.unknown_workspaces):
        status = library.path.stat()
        digest.update(f"{library.path} {status.st_size} {status.st_mtime_ns}".encode())
    others = [library.soname for library in (build.cudnn, build.nccl) if library]
    digest.update(f"{build.version} {build.cuda} {build.triton} {others}".encode())
    return digest.hexdigest()[:16]


def _build_into(folder: Path, build: TorchBuild) -> None:
    with usable(folder.parent):
        work = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        for part in _parts(build):
            _compile(part, work, _definitions(build))
        (work / "libcuda.so").symlink_to("libcuda.so.1")  # Triton links its launchers with -lcuda
        seal(work)
        if folder.exists() and not is_whole(folder):
            shutil.rmtree(folder)
        try:
            work.rename(folder)
        except OSError:
            if not is_whole(folder):  # else another rehearsal was quicker, with the same libraries
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _definitions(build: TorchBuild) -> tuple[str, ...]:
    major, _, minor = build.cuda.partition(".")
    number = int(major) * 1000 + int(minor or 0) * 10
    return (f"-DCUDA_MAJOR={major}", f"-DCUDA_VERSION={number}", f"-DCUBLAS_VERSION={major}0100")


def _parts(build: TorchBuild) -> Iterable[_Part]:
    real = (
        (
            build.runtime,
            "libcudart",
            ("memory.c", "addresses.c", "outside.c", "cudart.c", "ends.c"),
        ),
        (build.cublas_lt, "libcublasLt", ("cublaslt.c",)),
        (build.cublas, "libcublas", ("cublas.c",)),
    )
    for library, name, sources in real:
        node = f"{name}.so.{build.cuda_major}"
        yield _Part(library.soname, sources, library.functions, version_node=node)
    for library in build.unknown_workspaces:
        name = library.soname.partition(".")[0].partition("-")[0]
        answer, node = _NOT_HERE[name], library.soname
        sources = (f"{name[3:]}.c",)
        yield _Part(library.soname, sources, library.functions, answer, version_node=node)
    if build.nccl:
        asked = {name for name in build.nccl.functions if re.fullmatch(r"nccl[A-Z]\w+", name)}
        yield _Part(build.nccl.soname, ("nccl.c",), frozenset(asked), answer=_INVALID_USAGE)
    if build.cudnn:
        yield _Part(CUDNN, ("cudnn.c",), frozenset())
    yield _Part("libcuda.so.1", ("driver.c",), frozenset(driver_functions(build)))
    questions = c_names(build.folder / "lib" / "libc10_cuda.so", r"nvml[A-Z]\w+")
    yield _Part("libnvidia-ml.so.1", ("nvml.c",), frozenset(questions), answer=_NOT_SUPPORTED)


def driver_functions(build: TorchBuild) -> set[str]:
    """Return the driver's functions that PyTorch, cuDNN or Triton's launchers may call."""
    names = set(_DRIVER_ALWAYS)
    for library in sorted((build.folder / "lib").glob("lib*nvrtc*.so")):
        names |= set(read_library(library).undefined)
    if build.cudnn:
        for library in sorted(build.cudnn.path.parent.glob("libcudnn_graph*.so.*")):
            names |= c_names(library, _DRIVER_NAME)
    names |= c_names(build.folder / "lib" / "libc10_cuda.so", _DRIVER_NAME)
    if build.triton:
        for source in sorted((build.triton / "backends" / "nvidia").glob("driver.*")):
            names |= set(re.findall(rf"\b{_DRIVER_NAME}(?=\()", source.read_text(errors="replace")))
    return {n for n in names if re.fullmatch(_DRIVER_NAME, n) and not n.startswith("cuFile")}


def _compile(part: _Part, folder: Path, definitions: tuple[str, ...]) -> None:
    objects = []
    for source in part.sources:
        objects.append(folder / f"{source}.o")
        cc(*FLAGS, HIDDEN, *definitions, "-c", NATIVE / source, "-o", objects[-1])
    own = {name for item in objects for name in read_library(item).functions}
    rest = folder / f"{part.soname}.rest.c"
    accepted = sorted(n for n in part.functions - own if re.fullmatch(r"[A-Za-z]\w*|__cuda\w+", n))
    rest.write_text("".join(f"int {name}(void) {{ return {part.answer}; }}\n" for name in accepted))
    link: list[str | Path] = [f"-Wl,-soname,{part.soname}", "-shared", "-o", folder / part.soname]
    if part.version_node:
        script = folder / f"{part.soname}.map"
        script.write_text(f"{part.version_node} {{ global: *; }};\n")
        link.append(f"-Wl,--version-script={script}")
    cc(*FLAGS, *objects, rest, *link, "-lpthread", "-ldl")


def c_compiler() -> str | None:
    """Return the system's C compiler, None without one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def cc(*arguments: str | Path) -> None:
    """Run the system's C compiler. Raises VramBudgetError without one, or with its complaint."""
    compiler = c_compiler()
    if compiler is None:
        raise VramBudgetError(
            "no C compiler was found, which the virtual GPU needs once",
            hint="install one: `apt install gcc`, `dnf install gcc` or `conda install gcc`",
        )
    done = subprocess.run(  # noqa: S603 - our own sources
        [compiler, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise VramBudgetError(
            f"the virtual GPU does not compile: {done.stderr.strip()[:2000]}",
            where=compiler,
            hint="please report this with the version of your compiler (`cc --version`)",
        )

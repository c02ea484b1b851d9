"""What stands before a training command: `env A=1`, `uv run`, `mpirun -n 8`, `srun --ntasks 8`.

Each is taken off by its own options, of which those are known that the programs' manuals list
(`launcher_options.toml`). One that is not known is refused, because whether it takes a word decides
where the command begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path

from vrambudget.errors import VramBudgetError
from vrambudget.files import RESULT_BYTES, read_file, toml_beside
from vrambudget.units import whole_number

_OPTIONS = toml_beside(__file__, "launcher_options.toml")
_WORDS = {"flags": 0, "values": 1, "pairs": 2}
"""How many words an option takes."""


@dataclass(frozen=True, slots=True)
class Inner:
    """A command without what stood before it.

    `prefix`: what still goes before it (`uv run`). `ranks`: of how many it is one, `each` on one
    machine. `kinds`: the programs that said it, which give a rank its own variables.
    """

    command: tuple[str, ...]
    prefix: tuple[str, ...] = ()
    ranks: int | None = None
    each: int | None = None
    kinds: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)  # variables that its options set

    def variables(self, rank: int) -> dict[str, str]:
        """Return the variables that the programs give a rank."""
        numbers = dict(self.given)
        for kind in self.kinds:
            numbers |= _VARIABLES[kind](rank, self.ranks or 1, self.each or 1)
        return numbers


def without_launcher(command: Sequence[str], environment: Mapping[str, str]) -> Inner:
    """Return the command that is inside. Raises VramBudgetError for options that are not known."""
    found = Inner(tuple(command))
    while found.command:
        program = Path(found.command[0]).name
        if program == "env":
            found = _env(found)
        elif program == "uv" and found.command[1:2] == ("run",):
            found = _uv(found)
        elif program in ("mpirun", "mpiexec", "orterun"):
            found = _mpirun(found)
        elif program == "srun":
            found = _srun(found, environment)
        else:
            return found
    raise VramBudgetError(f"nothing is started by: {' '.join(command)}")


def _env(found: Inner) -> Inner:
    """Take variables as given; env's options, which take some away, are refused."""
    rest = found.command[1:]
    if rest and rest[0].startswith("-"):
        raise VramBudgetError(
            f"env {rest[0]}: this option is not known here", hint="write env NAME=VALUE … python …"
        )
    words = tuple(dropwhile(lambda word: "=" in word, rest))
    given = dict(word.split("=", 1) for word in rest[: len(rest) - len(words)])
    return replace(found, command=words, given={**found.given, **given})


def _uv(found: Inner) -> Inner:
    """Keep uv before the command, which it runs in its project's environment."""
    _, rest = _options(found.command[2:], "uv run", "uv")
    before = found.command[: len(found.command) - len(rest)]
    if before[-1] in ("-m", "--module"):
        before, rest = before[:-1], ("python", "-m", *rest)
    elif rest and rest[0].endswith(".py"):
        _check_dependencies(Path(rest[0]))
        rest = ("python", *rest)
    return replace(found, command=rest, prefix=(*found.prefix, *before))


def _check_dependencies(script: Path) -> None:
    if script.is_file() and b"# /// script" in read_file(script, "script", RESULT_BYTES):
        raise VramBudgetError(
            "uv makes an environment of the script's own dependencies: which PyTorch it has is"
            " not known",
            where=str(script),
            hint="VRAMBUDGET_PYTHON=$(uv python find --script FILE), and leave out `uv run`",
        )


def _mpirun(found: Inner) -> Inner:
    program = Path(found.command[0]).name
    options, rest = _options(found.command[1:], program, "mpi")
    ranks = _number(program, options, "n", "np", "c")
    each = _number(program, options, "npernode", "N", "ppn") or ranks
    if ranks is None:
        raise VramBudgetError(f"{program}: of how many ranks?", hint=f"write {program} -n 8 …")
    given = dict(word.split("=", 1) for word in options.get("x", ()) if "=" in word)
    given |= {word.split()[0]: word.split()[1] for word in options.get("genv", ())}
    return replace(
        found,
        command=rest,
        ranks=ranks,
        each=each,
        kinds=(*found.kinds, "mpi"),
        given={**found.given, **given},
    )


def _srun(found: Inner, environment: Mapping[str, str]) -> Inner:
    options, rest = _options(found.command[1:], "srun", "srun")
    names = ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
    given = [whole_number(environment.get(name, "")) for name in names]
    nodes = _number("srun", options, "N", "nodes") or given[0] or 1
    each = _number("srun", options, "ntasks-per-node") or given[2]
    ranks = _number("srun", options, "n", "ntasks") or (each * nodes if each else None)
    ranks = ranks or given[1] or nodes
    return replace(
        found,
        command=rest,
        ranks=ranks,
        each=each or -(-ranks // nodes),
        kinds=(*found.kinds, "slurm"),
    )


def _number(program: str, options: Mapping[str, list[str]], *names: str) -> int | None:
    found = [options[name][-1] for name in names if name in options]
    if found and not whole_number(found[0]):
        raise VramBudgetError(f"{program} -{names[0]} {found[0]}: a number was expected")
    return int(found[0]) if found else None


def _options(
    words: Sequence[str], program: str, kind: str
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the options, by name without dashes, and what follows them."""
    takes = {
        name: _WORDS[group] for group, names in _OPTIONS[kind].items() for name in names.split()
    }
    found: dict[str, list[str]] = {}
    left = list(words)
    while left and left[0].startswith("-"):
        name, equals, value = left.pop(0).partition("=")
        if name == "--":
            break
        if not equals and name not in takes and name[:2] in takes and name[1] != "-":
            name, value, equals = name[:2], name[2:], "="  # -n8
        if name not in takes and not equals:
            raise VramBudgetError(
                f"{program} {name}: this option is not known here",
                hint=f"leave it out, or write {name}=… if it takes a word",
            )
        found_values = [value] if equals else [left.pop(0) for _ in range(takes[name]) if left]
        found.setdefault(name.lstrip("-"), []).append(" ".join(found_values))
        if name in ("-m", "--module") and program == "uv run":
            break
    return found, tuple(left)


def _mpi_variables(rank: int, ranks: int, each: int) -> dict[str, str]:
    """Return the variables that Open MPI and MPICH give a rank."""
    local = str(rank % each)
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(ranks),
        "OMPI_COMM_WORLD_LOCAL_RANK": local,
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(each),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(ranks),
        "MPI_LOCALRANKID": local,
        "MPI_LOCALNRANKS": str(each),
    }


def _slurm_variables(rank: int, ranks: int, each: int) -> dict[str, str]:
    """Return the variables that Slurm gives a task (srun(1), "OUTPUT ENVIRONMENT VARIABLES")."""
    nodes = str(-(-ranks // each))
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % each),
        "SLURM_NODEID": str(rank // each),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(ranks)),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        "SLURM_NTASKS_PER_NODE": str(each),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), "1"),
        "SLURM_JOB_NAME": "rehearsal",
        **dict.fromkeys(
            ("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), "localhost"
        ),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_GPUS_ON_NODE": str(each),
    }


_VARIABLES = {"mpi": _mpi_variables, "slurm": _slurm_variables}

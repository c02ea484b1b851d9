"""What a new release changes: the functions that rules cite, and the records that depend on it.

    python -m tests.releases cited transformers 5.23.0  # what changed since the one checked before
    python -m tests.releases cited transformers 5.23.0 --write  # read, accepted: keep it
    python -m tests.releases cited torch 2.13.0 --site VENV/lib/python3.11/site-packages
    python -m tests.releases newest  # what the newest release of each library changes
    python -m tests.releases records transformers --python NEW/bin/python --baseline OLD/bin/python
    python -m tests.releases programs --python NEW/bin/python  # recorded anew where unequal
    python -m tests.releases table  # what docs/versions.md lists

`cited` needs no installation: the wheel is downloaded and its Python files are read, unless --site
names a folder that has them. Not checked by machine: sources in C++ and CUDA, which no wheel has.
`records` rehearses the jobs of records that depend on a library under two environments, and
compares what PyTorch counts in each; `programs` holds the recorded programs of model types against
the models' own code of an environment, and shows how those change that are unequal.
Exit codes: 0 nothing changed, 1 something did.
"""

import argparse
import difflib
import json
import subprocess
import sys
from pathlib import Path

from .citations import Citation, citations
from .programs import record_again
from .replayed import rehearse_again
from .sources import Sources, digest, of_release

DIGESTS = Path(__file__).with_name("digests.json")
Digests = dict[str, dict[str, dict[str, str]]]  # package: version: "file::name": digest

BASELINE = {
    "torch": "2.11.0",
    "transformers": "5.17.0",
    "peft": "0.21.2",
    "accelerate": "1.15.0",
    "trl": "1.16.0",
    "bitsandbytes": "0.50.2",
    "deepspeed": "0.19.8",
    "lightning": "2.6.6",
    "diffusers": "0.42.0",
    "vllm": "0.19.0",
    "sglang": "0.5.9",
    "gguf": "0.19.0",  # of llama.cpp, whose own sources are in C++
}
"""The libraries whose Python sources are cited, and the version that rules were written from."""


def digests() -> Digests:
    """Return the digests of cited definitions, for each version that was checked."""
    found: Digests = json.loads(DIGESTS.read_text())
    return found


def texts_of(sources: Sources, cited: list[Citation]) -> dict[str, str]:
    """Return the cited definitions that a library has, by "file::name"."""
    found: dict[str, str] = {}
    for citation in cited:
        found |= sources.find(citation.path, citation.names) or {}
    return found


def cited(package: str, version: str, *, site: Path | None, write: bool) -> int:
    """Print which cited definitions differ from the release checked before; return the exit code.

    It is the newest one before whose digests are kept, else the baseline.
    """
    given = [c for c in citations() if c.is_python]
    new = texts_of(Sources(package, site) if site else of_release(package, version), given)
    kept = digests()
    known = kept.setdefault(package, {})
    if write:
        known[version] = {key: digest(text) for key, text in sorted(new.items())}
        DIGESTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(f"{package} {version}: {len(new)} cited definitions kept as checked")
        return 0
    then = max((v for v in known if _order(v) < _order(version)), key=_order, default=None)
    then = then or BASELINE[package]
    old = known[then]
    gone = sorted(set(old) - set(new))
    changed = sorted(key for key in set(old) & set(new) if old[key] != digest(new[key]))
    if gone or changed:
        before = texts_of(of_release(package, then), given)
        for key in changed:
            print(f"changed: {key}, cited by {', '.join(_citing(given, key))}")
            print(*_diff(before.get(key, ""), new[key]), sep="\n")
    for key in gone:
        print(f"gone: {key}, cited by {', '.join(_citing(given, key))}")
    print(
        f"{package} {then} to {version}: of {len(old)} cited definitions"
        f" {len(changed)} changed, {len(gone)} are gone"
    )
    return int(bool(gone or changed))


def newest() -> int:
    """Print what the newest release on PyPI of each library changes."""
    status = 0
    for package in BASELINE:
        found = subprocess.run(
            [sys.executable, "-m", "pip", "index", "versions", package],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        latest = found.partition("(")[2].partition(")")[0]
        known = digests().get(package, {})
        if latest in known:
            print(f"{package} {latest}: checked")
            continue
        status |= cited(package, latest, site=None, write=False)
    return status


def table() -> str:
    """Return the libraries whose cited definitions are checked, as docs/versions.md lists them."""
    kept = digests()
    lines = ["| library | checked | baseline |", "|---|---|---|"]
    for package, baseline in BASELINE.items():
        versions = ", ".join(sorted(kept[package], key=_order))
        lines.append(f"| {package} | {versions} | {baseline} |")
    return "\n".join(lines) + "\n"


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _citing(given: list[Citation], key: str) -> list[str]:
    file, _, name = key.partition("::")
    return sorted(
        {
            c.where
            for c in given
            if f"/{file}".endswith(f"/{c.path}") and (not name or name in c.names)
        }
    )


def _diff(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return [f"    {line}" for line in list(lines)[2:]]


def main() -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.releases",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("newest", help="what the newest release of each library changes")
    one = commands.add_parser("cited", help="what changed of the definitions that rules cite")
    one.add_argument("package", choices=sorted(BASELINE))
    one.add_argument("version")
    one.add_argument("--site", type=Path, help="the folder that the library is imported from")
    one.add_argument("--write", action="store_true", help="keep its digests as checked")
    other = commands.add_parser("records", help="rehearse what depends on a library once more")
    other.add_argument("package", choices=sorted(BASELINE))
    other.add_argument("--python", required=True, help="of an environment with the new release")
    other.add_argument("--baseline", required=True, help="Python of one with the baseline")
    other.add_argument("--most", type=int, default=20, help="records; the default is %(default)s")
    third = commands.add_parser("programs", help="hold the recorded programs against new models")
    third.add_argument("--python", required=True, help="of an environment with the new release")
    third.add_argument("names", nargs="*", help="model types; all without")
    commands.add_parser("table", help="the table of docs/versions.md")
    given = parser.parse_args()
    if given.command == "cited":
        return cited(given.package, given.version, site=given.site, write=given.write)
    if given.command == "newest":
        return newest()
    if given.command == "programs":
        return record_again(given.python, given.names)
    if given.command == "table":
        print(table(), end="")
        return 0
    return rehearse_again(given.package, given.python, given.baseline, given.most)


if __name__ == "__main__":
    sys.exit(main())

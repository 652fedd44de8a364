"""Mutants on disk, judged file by file: what the mutants of a file showed is kept, with the version of what it was found with.

A run that was stopped, or that asked about some files, leaves what is complete: a file whose mutants, text and tests are the same is not
judged again.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from proof.mutate.explained import EXPLAINED
from proof.mutate.mutant import ROOT
from proof.mutate.product import judge
from proof.mutate.runner import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from proof.mutate.mutant import Mutant
    from proof.mutate.product import Sweep

__all__ = ["judge_files", "result_of", "version_of"]


def version_of(mutants: Sequence[Mutant | Sweep]) -> str:
    """Return a name for what the mutants of one file show: their file, what they are, and the tests that are named beside them."""
    digest = hashlib.blake2b(repr(mutants).encode(), digest_size=4)
    tests = {test.partition("::")[0] for mutant in mutants for test in mutant.by}
    for path in sorted({mutants[0].file, "proof/mutate/general.py", *tests}):
        digest.update((ROOT / path).read_bytes())
    return digest.hexdigest()


def judge_files(
    mutants: Iterable[Mutant | Sweep],
    kept: Path,
    processes: int,
    *,
    only: Sequence[str] = ("",),
    covered_by: Sequence[str] | None = None,
    again: bool = False,
) -> list[dict[str, Any]]:
    """Return what the mutants of each file showed, one after the other, and keep it in the folder *kept*.

    Those of files with none of *only* in their paths are not judged: only what is kept is told, of whatever version it is. *again* asks
    anew about what nothing has noticed: there may be a test by now.

    Raises: RuntimeError: as :func:`~proof.mutate.product.judge`.
    """
    kept.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[Mutant | Sweep]] = {}
    for mutant in mutants:
        groups.setdefault(mutant.file, []).append(mutant)
    files = {file: kept / f"{file.replace('/', '.')}.json" for file in groups}
    codes = {file: version_of(group) for file, group in groups.items()}
    told = {file: json.loads(path.read_text()) for file, path in files.items() if path.exists()}
    chosen = [file for file in groups if any(part in file for part in only)]
    asked = {file: groups[file] for file in chosen if file not in told or told[file]["code"] != codes[file]}
    stand: dict[str, list[dict[str, Any]]] = {}
    for file in [file for file in chosen if again and file not in asked]:
        # Two changes of one function may have one name: both are asked about.
        left = {each["name"] for each in told[file]["verdicts"] if each["by"] is None}
        if left:
            stand[file] = [each for each in told[file]["verdicts"] if each["name"] not in left]
            asked[file] = [mutant for mutant in groups[file] if mutant.name in left]
    for file, found in _complete(asked, processes, covered_by):
        verdicts = sorted([*stand.get(file, []), *found], key=lambda each: str(each["name"]))
        told[file] = {
            "file": file,
            "code": codes[file],
            "at": f"{datetime.now(UTC):%Y-%m-%d}",
            "seconds": sum(each["seconds"] for each in verdicts),
            "verdicts": verdicts,
        }
        files[file].write_text(json.dumps(told[file], indent=1))
    return [told[file] for file in groups if file in told]


def _complete(
    groups: dict[str, list[Mutant | Sweep]], processes: int, covered_by: Sequence[str] | None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield what each file showed, as soon as all of its mutants are judged."""
    verdicts: dict[str, list[Verdict]] = {file: [] for file in groups}
    chosen = [mutant for group in groups.values() for mutant in group]
    if not chosen:
        return
    for verdict in judge(chosen, processes, covered_by):
        file = f"{verdict.rule}.py"
        verdicts[file].append(verdict)
        if len(verdicts[file]) == len(groups[file]):
            yield file, [each._asdict() for each in verdicts[file]]


def result_of(files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a stage that judged *files*: what survived, explained or not, beside what each showed."""
    survived = [
        each["name"] if each["name"].startswith(told["file"]) else f"{told['file']}: {each['name']}"
        for told in files
        for each in told["verdicts"]
        if each["by"] is None
    ]
    return {
        "files": files,
        "ran_s": sum(told["seconds"] for told in files),
        "explained": {name: EXPLAINED[name] for name in survived if name in EXPLAINED},
        "wrong": [name for name in survived if name not in EXPLAINED],
    }

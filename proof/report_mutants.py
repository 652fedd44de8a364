"""The sections of the page about mutants on disk. The rows of a file stand until its mutants are judged again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proof.mutate.mutant import SLIPS
from proof.mutate.product import SWEPT
from proof.standing import rows_of
from proof.tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

__all__ = ["slips", "standing_problems", "sweep"]

_HEAD_OF_FILES = ("File", "changes", "noticed", "explained", "not noticed", "run", "code")
_HEAD_OF_SLIPS = ("Mutant", "file", "noticed by", "run", "code")
_HEAD_OF_EXPLAINED = ("Change", "why it makes no difference that matters")
_HEAD_OF_SURVIVORS = ("Not noticed, and not explained yet", "")


def sweep(result: dict[str, Any], stands: Sequence[str]) -> list[str]:
    """Return the section about the general changes, with the rows of the page as it *stands* for files that *result* does not tell of."""
    rows: list[Sequence[object]] = []
    for told in result["files"]:
        survived = [each["name"] for each in told["verdicts"] if each["by"] is None]
        explained = sum(name in result["explained"] for name in survived)
        changes, noticed = len(told["verdicts"]), len(told["verdicts"]) - len(survived)
        rows.append((told["file"], changes, noticed, explained, len(survived) - explained, told["at"], told["code"]))
    rows = _with_standing(rows, stands, _HEAD_OF_FILES, result, lambda row: row[0])
    return [
        "Each comparison, constant, condition, argument and statement of a file changed, one at a time, judged by the tests that run the",
        "changed line: for the core its own, and then those that explore, simulate and interrupt; for an adapter its own, and the suite on",
        "its store. What is logged for debugging stays as it is.",
        "A row is the newest run of its file; *code* is the version of the file and of the kinds of changes.",
        "",
        *table(_HEAD_OF_FILES, rows),
        *_told_missing("swept", SWEPT, {str(row[0]) for row in rows}),
        *_survivors(result, stands),
    ]


def slips(result: dict[str, Any], stands: Sequence[str]) -> list[str]:
    """Return the section about the named mutants, with the rows of the page as :func:`sweep` does."""
    rows: Iterable[Sequence[object]] = [
        (each["name"], told["file"], each["by"] or "**nothing**", told["at"], told["code"])
        for told in result["files"]
        for each in told["verdicts"]
    ]
    rows = _with_standing(rows, stands, _HEAD_OF_SLIPS, result, lambda row: row[1])
    unnoticed = sum(row[2] == "**nothing**" for row in rows)
    return [
        f"{len(rows)} mutants of a whole copy of the project, each the slip of a careful programmer, judged by the tests that stand beside",
        f"it in `proof/mutate/slips.txt`: {unnoticed} were not noticed. A row is of the newest run of its file; *code* is the version of",
        "the file, of its mutants and of these tests.",
        "",
        *table(_HEAD_OF_SLIPS, rows),
        *_told_missing("judged", [slip.file for slip in SLIPS], {str(row[1]) for row in rows}),
        *_survivors(result, stands),
    ]


def standing_problems(result: dict[str, Any], problems: Iterable[str]) -> list[str]:
    """Return those of the *problems* of the page that are of files that *result* does not tell of."""
    done = tuple(f"{told['file']}: " for told in result["files"])
    return [each for each in problems if not each.startswith(done)]


def _told_missing(done: str, files: Iterable[str], told: Collection[str]) -> list[str]:
    """Return what says which of *files* are not among those that are *told*."""
    missing = [f"`{file}`" for file in dict.fromkeys(files) if file not in told]
    return [f"Not {done} yet: {', '.join(missing)}.", ""] if missing else []


def _with_standing(
    rows: Iterable[Sequence[object]],
    stands: Sequence[str],
    head: Sequence[str],
    result: dict[str, Any],
    file_of: Callable[[Sequence[object]], object],
) -> list[Sequence[object]]:
    """Return *rows*, and those that stand of other files, by file and in their order."""
    done = {told["file"] for told in result["files"]}
    every = [*rows_of(stands, head, lambda row: file_of(row) in done), *rows]
    return sorted(every, key=lambda row: str(file_of(row)))


def _survivors(result: dict[str, Any], stands: Sequence[str]) -> list[str]:
    """Return the tables of what nothing noticed: with and without an explanation."""
    done = tuple(f"{told['file']}: " for told in result["files"])
    lines: list[str] = []
    for head, rows in (
        (_HEAD_OF_EXPLAINED, result["explained"].items()),
        (_HEAD_OF_SURVIVORS, [(name, "") for name in result["wrong"]]),
    ):
        every = [*rows_of(stands, head, lambda row: row[0].startswith(done)), *rows]
        lines += table(head, sorted(every, key=lambda row: str(row[0]))) if every else []
    return lines

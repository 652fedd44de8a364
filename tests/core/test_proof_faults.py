"""The fault cells of the proof: the check of a history sees what is planted, and a few trials of real faults break only the controls."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from dlock_conformance.servers import ServerMissingError

from dlock_core.errors import LeaseStateError, StoreUnavailableError
from proof.faults import runner as faults
from proof.faults.book import Book, check
from proof.faults.book_line import Line
from proof.faults.book_server import Resource
from proof.faults.leaders import Looks
from proof.faults.nursery import Nursery
from proof.faults.party import told
from proof.faults.stores import STORES, Size, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Of a few keys: other tests may be under way.
SIZE = Size(lease_s=0.6, keys=6, run_keys=1)


def at_once(book: Book, token: int, at: int, deadline: int) -> None:
    """Have an effect without a pause between looking and writing."""
    book.use("k", token, at=at, deadline=deadline, seen=book.fence("k", token))


def test_history_of_two_good_grants_is_good() -> None:
    """One after the other, the second with a higher token."""
    book = Book()
    book.granted("k", 1, "a", 100)
    at_once(book, 1, 110, 150)
    book.waiting("k", "b", 120)
    book.granted("k", 2, "b", 160)
    at_once(book, 2, 170, 200)

    found = check(book)

    assert (found.grants, found.repeated, found.early, found.disordered, found.lost, found.unheard) == (
        2,
        0,
        0,
        0,
        0,
        0,
    )
    assert set(found.stale.values()) == {0}


def test_history_shows_a_stale_effect_to_each_resource_but_the_fenced() -> None:
    """The first holder, which looked before the second came, writes after it."""
    book = Book()
    at_once(book, 1, 110, 150)
    looked = book.fence("k", 1)
    at_once(book, 2, 170, 200)
    book.use("k", 1, at=120, deadline=150, seen=looked)

    found = check(book)

    assert found.stale == {"fenced": 0, "naive": 1, "checked": 1, "two-step": 1}
    assert found.lost == 0


def test_history_shows_a_lost_update_of_two_holders_of_one_token() -> None:
    """Both read the balance before either writes, and no fence can tell them apart."""
    book = Book()
    seen = [book.fence("k", 1), book.fence("k", 1)]
    for each in seen:
        book.use("k", 1, at=110, deadline=150, seen=each)

    assert check(book).lost == 1


def test_history_shows_a_token_twice_and_a_grant_too_early() -> None:
    """What must never be."""
    book = Book()
    book.granted("k", 1, "a", 100)
    at_once(book, 1, 110, 150)
    book.granted("k", 2, "b", 140)
    book.granted("k", 2, "c", 141)

    found = check(book)

    assert (found.repeated, found.early) == (1, 1)


def test_history_shows_tokens_out_of_order_and_one_that_nobody_heard_of() -> None:
    """Whoever began to wait when token 5 was there cannot get 3; nobody has told of 4."""
    book = Book()
    book.granted("k", 5, "a", 100)
    book.waiting("k", "b", 110)
    book.granted("k", 3, "b", 120)

    found = check(book)

    assert (found.disordered, found.unheard) == (1, 1)


def test_history_of_a_grant_after_a_release_is_not_early() -> None:
    """A lease that was given back binds nobody."""
    book = Book()
    book.granted("k", 1, "a", 100)
    at_once(book, 1, 110, 150)
    book.ended("k", 1, "released", 120)
    book.granted("k", 2, "b", 125)

    assert check(book).early == 0


@pytest.mark.parametrize(("paused", "beside"), [(False, 1), (True, 0)])
def test_history_shows_a_body_beside_the_next_and_counts_one_that_had_paused_apart(
    *, paused: bool, beside: int
) -> None:
    """A body that ended before the next one began is neither."""
    book = Book()
    book.granted("k", 1, "a", 100)
    book.granted("k", 2, "b", 160)
    book.body_over("k", 1, 160, paused)
    assert (check(book).beside, check(book).paused) == (0, 0)

    book.body_over("k", 1, 161, paused)
    assert (check(book).beside, check(book).paused) == (beside, 1 - beside)


@pytest.mark.parametrize(
    ("looks", "over", "paused"),
    [
        ((10, 20, 30), 40, False),
        ((25, 50), 75, False),  # never longer than the grace
        ((10, 40), 45, True),
        ((10, 40, 60, 80, 100, 120), 140, True),  # a lease to notice it
        ((10, 40, 60, 80, 100, 120), 141, False),  # it ran, and went on for longer than a lease
        ((10,), 40, True),  # not even a look came between
        ((10, 40, 60, 80, 100, 120, 150), 155, True),
    ],
)
def test_body_has_just_paused_if_it_did_not_look_for_longer_than_its_grace(
    looks: tuple[int, ...], over: int, *, paused: bool
) -> None:
    """Since nothing can tell a body to stop that does not run."""
    body = Looks(100, 0, left_s=100e-9)
    for at in looks:
        body.look(at)

    assert body.has_just_paused(over) is paused


@pytest.mark.parametrize(
    ("left_s", "over", "paused"),
    [(26e-9, 20, False), (25e-9, 20, True), (0, 20, True), (0, 100, True), (0, 120, False)],
)
def test_body_has_just_paused_if_it_began_when_its_lease_was_over(left_s: float, over: int, *, paused: bool) -> None:
    """Its process stood still between the grant and the body; it has a lease to notice that, as after any pause."""
    body = Looks(100, 0, left_s)
    for at in range(20, over, 20):
        body.look(at)

    assert body.has_just_paused(over) is paused


def test_history_shows_a_slot_that_was_begun_after_it_was_finished() -> None:
    """A run that begins with a later token, of that slot or of an earlier one; one that had died may be begun again."""
    book = Book()
    assert book.slot("k") == 1
    for token in (1, 2):
        book.slot_begun("k", 1, token)
    book.slot_finished("k", 1, 2)
    assert (check(book).again, book.slot("k")) == (0, 2)

    book.slot_begun("k", 1, 3)
    assert check(book).again == 1


def test_cancellation_is_followed_by_the_next_grant_of_a_key_that_nobody_had() -> None:
    """What another holds at that time tells nothing of the one that was cancelled."""
    book = Book()
    book.granted("k", 1, "a", 100)
    book.ended("k", 1, "released", 110)
    book.cancelled("k", 115)
    book.granted("k", 2, "b", 1_000_000_115)
    book.cancelled("k", 1_000_000_120)

    assert faults.after_cancels(book, lease_s=2.0) == [0.5]


def test_error_that_no_fault_explains_is_wrong(tmp_path: Path) -> None:
    """A store that is stopped explains its errors, and a holder that is stopped its loss; a refusal to wait is a fault of ours."""
    book = Book()
    with closing(Resource(str(tmp_path / "book"), book)) as resource, closing(Line(resource.path, "1")) as line:
        told(line, StoreUnavailableError("stopped", key="k"))
        told(line, LeaseStateError("this task holds the lock"))
        line.ask("fence", "k", 1)  # all of it has arrived

    wrong = faults.wrong_with(faults.CELLS["kill"], check(book), book)

    assert wrong == ["1 errors were told that no fault explains"]


def test_resource_has_taken_all_that_was_sent_when_it_is_settled(tmp_path: Path) -> None:
    """Messages of many connections, and of one whose holder has ended, are in the book."""
    book = Book()
    with closing(Resource(str(tmp_path / "book"), book)) as resource, ExitStack() as stack:
        lines = [stack.enter_context(closing(Line(resource.path, str(number)))) for number in range(20)]
        for line in lines:
            line.tell("wait", "k", 1)
            line.tell("note", "sent", 2)
        resource.settle()
        lines[0].close()
        resource.settle_of("0")

        assert book.notes["sent"] == 40
        assert book.waited_for("k", besides="1")
        assert not book.held_by("0")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Where the parties come from."""
    with closing(Nursery()) as nursery:
        yield nursery


def tried(store: str, cell: str, folder: Path, nursery: Nursery) -> dict[str, Any]:
    """A few trials of one cell."""
    with open_store(store, folder) as opened:
        return faults.run_cell(store, faults.CELLS[cell], 4, opened, nursery, size=SIZE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "cell",
    [
        *("kill", "hasty", "gil-hog", "fork", "cancel", "disk-full"),
        *("leader-kill", "deaf-leader-stop", "runner-kill", "forgetful-runner", "session-kill", "writers-stop-2"),
    ],
)
def test_faults_of_holders_on_a_file_break_only_the_controls(cell: str, tmp_path: Path, nursery: Nursery) -> None:
    """A few trials on real processes, and more until the control has failed; ``make faults`` runs hundreds."""
    shown = tried("sqlite", cell, tmp_path, nursery)

    assert shown["wrong"] == []
    assert shown["trials"] >= 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "cell",
    [
        *(
            "chain",
            "stop-2",
            "server-kill",
            "black-hole",
            "cut-replies",
            "peer-stop-2",
            "leader-cut-off",
            "runner-stop-2",
        ),
        "session-cut-replies",
    ],
)
def test_faults_of_a_server_break_nothing_but_a_peer(cell: str, tmp_path: Path, nursery: Nursery) -> None:
    """Holders killed and stopped in a chain; Redis killed, restarted, silent for two leases, its replies lost; and redis-py's own Lock."""
    shown = tried("redis", cell, tmp_path, nursery)

    assert shown["wrong"] == []
    assert shown["grants"] > 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_body_that_does_not_run_for_two_leases_is_counted_apart(tmp_path: Path, nursery: Nursery) -> None:
    """It overlaps the next one, as no lease can prevent, and ends as soon as it runs again."""
    cell = faults.CELLS["leader-stop-2"]._replace(control="paused")
    with open_store("sqlite", tmp_path) as opened:
        shown = faults.run_cell("sqlite", cell, 4, opened, nursery, size=SIZE)

    assert shown["wrong"] == []
    assert (shown["paused"] > 0, shown["beside"]) == (True, 0)


def test_faults_name_the_stores_that_can_be_disturbed() -> None:
    """Bad input says what to do."""
    with pytest.raises(SystemExit, match=f"these are there: {', '.join(STORES)}"):
        faults.run_cells(["consul"], 1)


def test_a_missing_server_is_told_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not left out: the result says which store was not tried, and what to do."""

    def none(name: str, folder: Path) -> None:
        raise ServerMissingError(f"there is no {name} server; install one")

    monkeypatch.setattr(faults, "open_store", none)

    told = faults.run_cells(["redis"], 1)

    assert told == {"cells": [], "wrong": ["redis: there is no redis server; install one"]}


def test_cell_is_run_again_on_another_version_and_its_newest_run_alone_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was wrong with an earlier run is wrong no more; a run of this version with nothing wrong stays."""
    runs: list[str] = []

    def run_store(name: str, trials: int, cells: Any, kept: Path, code: str) -> list[str]:
        runs.append(code)
        told = {"store": name, "cell": cells[0].name, "trials": trials, "code": code}
        wrong = ["1 bodies ran on beside the next"] if code == "old" else []
        (kept / f"{name}-{cells[0].name}.json").write_text(json.dumps(told | {"wrong": wrong}))
        return []

    monkeypatch.setattr(faults, "run_store", run_store)
    found = [
        faults.run_cells(["sqlite"], 3, ["runner-kill"], kept=tmp_path, code=code) for code in ("old", "new", "new")
    ]

    assert runs == ["old", "new"]
    assert [len(each["wrong"]) for each in found] == [1, 0, 0]
    assert [cell["code"] for cell in found[-1]["cells"]] == ["new"]

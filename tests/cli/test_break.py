"""``dlock break``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core import LockRecord, State, connect
from dlock_core.store import Claim, Expect
from tests.cli.operator_support import Command

if TYPE_CHECKING:
    from dlock_core import LockClient


def test_break_quarantines_and_says_what_that_means(dlock: Command, client: LockClient) -> None:
    """The token is raised, the key stays closed for a lease, and the fence is named."""
    with connect(client.options) as other:
        lease = other.acquire("k", auto_renew=False)

        code, out, err = dlock("break", "k", "--token", str(lease.fencing_token))

        record = client.get("k")
        assert record is not None
        assert (record.held, record.fencing_token) == (True, 2)
        assert record.broken is not None
        for shown in (dlock("ls")[1], dlock("show", "k")[1]):
            assert "quarantined, " in shown
            assert "nobody" in shown
        assert record.owner not in dlock("ls")[1]
        _, _, told = dlock("run", "--no-wait", "k", "--", "true")
        other.close()
    assert (code, err) == (0, "")
    assert (
        f"in one try: held by nobody: {record.owner!r} broke it, and one lease after that it is free, broken " in told
    )
    assert "token 1 -> 2" in out
    assert "nobody gets it for one lease (20 s)" in out
    assert "SET fence = 2 WHERE id = ... AND fence < 2" in out


def test_break_now_frees_at_once_and_says_what_is_lost(dlock: Command, client: LockClient) -> None:
    """Exclusion is, until the holder renews."""
    with connect(client.options) as other:
        lease = other.acquire("k", auto_renew=False)

        facts = dlock.json("break", "k", "--token", str(lease.fencing_token), "--now")

        record = client.get("k")
        other.close()
    assert record is not None
    assert (record.state, record.fencing_token) == (State.FREE, 2)
    assert (facts["broken"], facts["freed"], facts["fencing_token"], facts["lease_ms"]) == (True, True, 2, 20000)
    assert "LOST: exclusion" in facts["means"]
    assert lease.owner in facts["means"]
    assert "fence < 2" in facts["fence"]


def test_break_with_an_old_token_breaks_nothing(dlock: Command, client: LockClient) -> None:
    """The token names the grant: a newer one is safe from a command line that is late."""
    with client.lock("k"):
        pass
    with client.lock("k") as lease:
        code, out, err = dlock("break", "k", "--token", "1")

        assert lease.ensure() == 2
    assert (code, out) == (1, "")
    assert err.startswith(
        f"dlock: lock 'k' was not broken: token 1 is not its present one: it is held by '{lease.owner}' since "
    )


def test_break_of_a_free_lock_breaks_nothing(dlock: Command, client: LockClient) -> None:
    """There is nothing to break."""
    with client.lock("k"):
        pass

    code, _, err = dlock("break", "k", "--token", "1")

    assert code == 1
    assert "nobody holds it" in err


def test_break_needs_the_token(dlock: Command, url: str) -> None:
    """Nobody breaks what they have not looked at."""
    code, _, err = dlock("break", "k")

    assert code == 64
    assert "--token N or --rvn RVN" in err


def test_break_by_number_breaks_what_was_seen(dlock: Command, client: LockClient) -> None:
    """The record version number that ``dlock show`` prints names one record exactly."""
    with connect(client.options) as other:
        other_lease = other.acquire("k", auto_renew=False)
        shown = dlock.json("show", "k")["rvn"]

        code, out, err = dlock("break", "k", "--rvn", shown)

        record = client.get("k")
        other.close()
    assert (code, err) == (0, "")
    assert f"token {other_lease.fencing_token} -> 2" in out
    assert record is not None
    assert record.broken is not None


def test_break_by_number_and_token_needs_both_and_frees_at_once_where_asked(dlock: Command, client: LockClient) -> None:
    """A token that was mistyped breaks nothing, though the number is right."""
    with connect(client.options) as other:
        lease = other.acquire("k", auto_renew=False)
        shown = dlock.json("show", "k")["rvn"]

        refused, _, _ = dlock("break", "k", "--token", "7", "--rvn", shown, "--now", "--yes")
        still = client.get("k")
        code, _, err = dlock("break", "k", "--rvn", shown, "--now", "--yes")
        freed = client.get("k")
        other.close()

    assert still is not None
    assert freed is not None
    assert (refused, still.held, still.fencing_token) == (1, True, lease.fencing_token)
    assert (code, err, freed.held) == (0, "", False)


def test_break_by_number_breaks_nothing_that_has_changed_since(dlock: Command, client: LockClient) -> None:
    """A renewal is a change too: its holder is alive. What stands there now is told."""
    with client.lock("k") as lease:
        shown = dlock.json("show", "k")["rvn"]
        lease.renew()
        record = client.get("k")

        code, out, err = dlock("break", "k", "--rvn", shown)
        with_its_token = dlock("break", "k", "--rvn", shown, "--token", "1")[0]

        assert lease.ensure() == 1
    assert record is not None
    assert (code, out, with_its_token) == (1, "", 1)
    assert err.startswith(
        f"dlock: lock 'k' was not broken: its record is not {shown} any more: it is held by '{lease.owner}' since "
    )
    assert f"as {record.rvn}; see 'dlock show'" in err


def test_break_by_number_takes_the_number_as_it_is_shown(dlock: Command, client: LockClient, url: str) -> None:
    """Another client's number may have characters that no command line can: they are written out in both."""
    store = client._store
    strange = "\x00\n\xff" + "x" * 61
    store.claim(Claim(LockRecord("k", State.HELD, strange, 1, "theirs", 20_000), Expect.ANY), timeout_s=5)
    [shown] = [line.split()[1] for line in dlock("show", "k")[1].splitlines() if line.startswith("rvn")]

    code, _, err = dlock("break", "k", "--rvn", shown, "--now")

    assert (code, err) == (0, "")
    assert shown.startswith("\\x00\\n")

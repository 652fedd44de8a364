"""What the verbs ask, and what they make of the answers: the exchanges by hand, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError, TimeoutError  # noqa: A004  # the driver's

from dlock_core.errors import OutcomeUnknownError, StoreSetupError, StoreUnavailableError
from dlock_core.record import Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_redis import _errors as errors
from dlock_redis import _wire as wire
from dlock_redis._aconnections import AsyncConnections
from dlock_redis._resp import pack
from dlock_redis._scripts import CLAIM, CLAIM_MANY, ENTER, Invocation
from dlock_redis._servers import Part, Request, Servers
from tests.redis.support import held, tomb
from tests.redis.test_wire import row

UNKNOWN = ResponseError("NOSCRIPT No matching script. Please use EVAL.")
MOVED = ResponseError("MOVED 3999 127.0.0.1:6381")


class Cluster(wire.RedisVerbs):
    """Verbs that follow redirections."""

    topology = "redis-cluster"


def renewal(key: str, **fields: Any) -> Replace:
    """Return a renewal that changes nothing but the RVN."""
    return Replace(held(key, 3, **fields), Version("r", 3), keep_payload=True)


def batch(verbs: wire.RedisVerbs, requests: Sequence[Replace], *answers: Any) -> tuple[Sequence[Any], list[Request]]:
    """Run a batch of *requests*, each answer the next of *answers* or raised; return its results and what was sent."""
    exchange, sent = verbs.replace_many(requests), list[Request]()
    answer: Any = None
    for each in (None, *answers):
        try:
            answer = exchange.throw(each) if isinstance(each, Exception) else exchange.send(each)
        except StopIteration as end:
            return end.value, sent
        if isinstance(answer, Request):
            sent.append(answer)
    raise AssertionError(f"it asks for more: {answer}")


@pytest.mark.parametrize("error", [TimeoutError("x"), ConnectionError("x")])
def test_a_request_that_was_sent_and_not_answered_may_be_applied(error: Exception) -> None:
    """One that was not sent is not."""
    assert type(errors.trouble(error, "k", sent=True)) is OutcomeUnknownError
    assert type(errors.trouble(error, "k", sent=False)) is StoreUnavailableError


def test_a_wrong_password_is_told_from_a_missing_one() -> None:
    """The driver has one class for both."""
    wrong = errors.trouble(AuthenticationError("invalid username-password pair"), None, sent=False)
    missing = errors.trouble(AuthenticationError("Authentication required."), None, sent=False)

    assert str(wrong).startswith("Redis refuses this user or password")
    assert str(missing).startswith("Redis wants a password")


@pytest.mark.parametrize("said", ["DB index is out of range", "invalid DB index"])
def test_a_database_that_the_server_does_not_have_is_told_where_it_stands(said: str) -> None:
    """No second try mends it."""
    error = errors.trouble(ResponseError(said), None, sent=False)

    assert type(error) is StoreSetupError
    assert "the last number of the URL is that of a database" in str(error)


@pytest.mark.parametrize(
    ("text", "elsewhere", "misplaced"),
    [
        ("MOVED 1 h:1", True, True),
        ("ASK 1 h:1", True, False),
        ("TRYAGAIN", True, False),
        ("READONLY", False, True),
        ("ERR Error running script (call to f_0): @user_script:21: @user_script: 21: -READONLY a replica", False, True),
        ("CLUSTERDOWN The cluster is down", False, True),
        ("NOREPLICAS Not enough good replicas to write", False, True),
        ("LOADING Redis is loading the dataset in memory", False, True),
        ("MASTERDOWN Link with MASTER is down", False, True),
        ("OOM command not allowed", False, False),
    ],
)
def test_who_says_that_another_server_has_to_be_asked(text: str, elsewhere: bool, misplaced: bool) -> None:
    """After some of these answers the connection is of no more use."""
    assert errors.is_elsewhere(ResponseError(text)) is elsewhere
    assert errors.is_misplaced(ResponseError(text)) is misplaced
    assert not errors.is_misplaced(b"READONLY")


def test_any_of_several_answers_may_be_an_error() -> None:
    """The last one as well."""
    assert errors.check([b"x", 1], "k") == [b"x", 1]
    with pytest.raises(StoreUnavailableError, match="maxmemory"):
        errors.check([b"x", ResponseError("OOM command not allowed")], "k")
    with pytest.raises(OutcomeUnknownError):
        errors.check([ResponseError("ERR of a kind that nobody knows")], "k")


def test_only_a_mere_renewal_goes_along_with_others() -> None:
    """A break, a release, new data: each is a script of its own."""
    requests = [
        renewal("a"),
        Replace(held("b", 4), Version("r", 3), keep_payload=True),
        Replace(tomb(held("c", 3)), Version("r", 3), keep_payload=True),
        Replace(held("d", 3), Version("r", 3), keep_payload=False),
        renewal("e", lease_ms=7, data=b"kept"),
    ]
    plain, *_, other = requests

    parts = list(wire._alike(requests, range(5)))

    assert parts == [[0, 4], [1], [2], [3]]
    assert wire.put_words([plain, other]) == [
        *(b"held", b"", b"", b"kl"),
        *(b"r", b"3", plain.record.rvn.encode(), b'["somebody", 20000, ""]'),
        *(b"r", b"3", other.record.rvn.encode(), b'["somebody", 7, ""]'),
    ]
    assert [wire.put_words([each])[:4] for each in requests[1:4]] == [
        [b"held", b"4", b"", b"klf"],
        [b"free", b"", b"", b"kw"],
        [b"held", b"", b"", b"l"],
    ]


def test_the_results_of_a_batch_are_those_of_its_keys() -> None:
    """The script answers only what is not a plain renewal, by the number of its key."""
    requests = [renewal("a"), renewal("b"), renewal("c")]

    results, _ = batch(wire.RedisVerbs(), requests, [Part("n", [0, 1, 2])], [[2, None]])

    assert results == [Reply(True, requests[0].record), Reply(False, None), Reply(True, requests[2].record)]


def test_a_payload_that_was_kept_and_is_not_answered_is_empty() -> None:
    """Whatever data and attributes the request names."""
    asked = renewal("a", data=b"other", attributes=(("b", 1),))

    [result], _ = batch(wire.RedisVerbs(), [asked], [Part("n", [0])], [[]])

    assert (result.applied, result.record.data, result.record.attributes) == (True, None, ())


def test_what_keeps_or_frees_a_lock_takes_a_connection_that_no_waiter_can_have() -> None:
    """Alone and in a batch, where it goes to the node of its keys."""
    verbs, record = wire.RedisVerbs(), held("a")
    _, [together] = batch(verbs, [renewal("a")], [Part("n", [0])], [[]])

    assert next(verbs.replace(renewal("a"))).urgent
    assert next(verbs.release(Release(tomb(record), record.version))).urgent
    assert (together.urgent, together.node) == (True, "n")
    assert not next(verbs.claim(Claim(record, Expect.ANY))).urgent


def test_a_script_that_the_server_does_not_know_is_sent_with_its_text() -> None:
    """It was not run before."""
    apart = [renewal("a"), Replace(held("b", 4), Version("r", 3), keep_payload=True)]

    results, sent = batch(wire.RedisVerbs(), apart, [Part("n", [0, 1])], [UNKNOWN, UNKNOWN], [[], []])

    assert [result.applied for result in results] == [True, True]
    assert [(b"EVALSHA" in each.commands, each.answers) for each in sent] == [(True, 2), (False, 2)]


def test_a_server_that_fails_leaves_the_results_of_the_others() -> None:
    """Each request to a server has its share of the time that is left."""
    parts = [Part("n", [0]), Part("m", [1])]

    results, sent = batch(wire.RedisVerbs(), [renewal("a"), renewal("b")], parts, TimeoutError("x"), [[]])

    assert isinstance(results[0], OutcomeUnknownError)
    assert results[1].applied
    assert [each.share for each in sent] == [2, 1]
    [full, _], _ = batch(wire.RedisVerbs(), [renewal("a"), renewal("b")], parts, [ResponseError("OOM no")], [[]])
    assert (type(full), full.key) == (StoreUnavailableError, "a")


def test_the_only_server_that_fails_is_the_failure_of_the_batch() -> None:
    """It is translated like any other."""
    with pytest.raises(TimeoutError):
        batch(wire.RedisVerbs(), [renewal("a")], [Part("n", [0])], TimeoutError("x"))


def test_a_key_that_has_moved_is_renewed_alone() -> None:
    """At the server that the second answer names."""
    results, sent = batch(Cluster(), [renewal("a")], [Part("n", [0])], [MOVED], [MOVED], [[]])

    assert results[0].applied
    assert sent[-1].node == str(MOVED)


def test_a_key_that_moves_just_now_is_asked_for_where_it_will_be() -> None:
    """With the command that Redis wants before; its answer is none of ours."""
    asked = ResponseError("ASK 3999 127.0.0.1:6381")

    [result], sent = batch(Cluster(), [renewal("a")], [Part("n", [0])], [asked], [asked], [b"OK", []])

    assert result.applied
    assert (sent[-1].node, sent[-1].answers) == (str(asked), 2)
    assert sent[-1].commands.startswith(pack(b"ASKING"))


def test_a_key_that_has_moved_may_be_renewed_though_no_answer_comes() -> None:
    """As any request that was sent."""
    [result], _ = batch(Cluster(), [renewal("a")], [Part("n", [0])], [MOVED], TimeoutError("x"))

    assert (type(result), result.key) == (OutcomeUnknownError, "a")


def test_redirections_are_not_followed_for_ever() -> None:
    """Two servers may send a request to and fro."""
    results, sent = batch(Cluster(), [renewal("a")], [Part("n", [0])], *[[MOVED]] * 6)

    assert isinstance(results[0], StoreUnavailableError)
    assert len(sent) == 6


@pytest.mark.parametrize("keeps", [False, True])
def test_writes_say_whether_the_payload_is_kept(keeps: bool) -> None:
    """A claim says too whether the key must exist."""
    record = held("k")

    claim = wire.claim_words(Claim(record, Expect.ANY, must_exist=True, keep_payload=keeps), b"")
    release = wire.put_words([Release(tomb(record), record.version, keep_payload=keeps)])

    assert claim[4] == (b"mk" if keeps else b"m")
    assert release[3] == (b"kw" if keeps else b"w")


def test_a_damaged_payload_that_was_kept_does_not_hide_the_write() -> None:
    """The key is held: an error that says the opposite would leave it behind."""
    request: Replace = renewal("k")

    with pytest.raises(OutcomeUnknownError, match="was written, but its payload is damaged"):
        wire.reply_of(request, [3, b"{"])


def test_several_keys_in_several_slots_are_not_claimed_together() -> None:
    """No script reaches them, and nothing is sent; those in one slot are one script."""
    requests = [Claim(held(key), Expect.ANY) for key in "ab"]
    apart, together = Cluster().claim_many(requests), Cluster().claim_many(requests)

    next(apart)
    with pytest.raises(StoreUnavailableError, match=r"keys 'a' to 'b' lie in several slots"):
        apart.send([Part("one", [0]), Part("one", [1])])

    next(together)
    sent = together.send([Part("one", [0, 1])])
    assert isinstance(sent, Request)
    assert (sent.answers, sent.key) == (1, "a")
    with pytest.raises(StopIteration) as ended:
        together.send([[7, 8]])
    assert [(reply.applied, reply.record.fencing_token) for reply in ended.value.value] == [(True, 7), (True, 8)]


def test_claims_of_several_keys_follow_a_slot_that_has_moved() -> None:
    """Not run there, they are sent where it is now, with the text of the script."""
    exchange = Cluster().claim_many([Claim(held(key), Expect.ANY) for key in "ab"])
    next(exchange)
    exchange.send([Part("one", [0, 1])])

    again = exchange.send([MOVED])

    assert (again.node, CLAIM_MANY.text in again.commands) == (str(MOVED), True)


@pytest.mark.parametrize("ticket", ["t", None])
def test_a_claim_that_waits_is_one_request(ticket: str | None) -> None:
    """It enters, waits at a list of its own and claims, each with its text; the place is that of the ticket, or of the version."""
    verbs, request = wire.RedisVerbs(), Claim(held("k"), Expect.ANY, ticket=ticket)
    place = b"!" + verbs.channel + (ticket or request.record.rvn).encode()

    sent = next(verbs.claim_when_free(request, 1.5))

    entering = Invocation(ENTER, ["k"], [place, b"1500000"]).packed(whole=True)
    assert sent.commands.startswith(entering + pack(b"BLPOP", b"k{k}" + place, b"1.500"))
    assert CLAIM.text in sent.commands
    assert (sent.answers, sent.key, sent.wait_s) == (3, "k", 1.5)


def waited(verbs: wire.RedisVerbs, *answers: Any) -> Reply:
    """Return what becomes of a claim that waits, by the *answers* to its requests."""
    exchange = verbs.claim_when_free(Claim(held("k"), Expect.ANY, ticket="t"), 1.5)
    next(exchange)
    try:
        for answer in answers:
            exchange.send(answer)
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    raise AssertionError("it asks for more")


def test_a_claim_that_was_granted_is_so_whatever_went_wrong_before() -> None:
    """A refusal is one only of who has waited."""
    assert waited(wire.RedisVerbs(), [ResponseError("NOPERM"), ResponseError("NOPERM"), 7]).applied
    assert waited(wire.RedisVerbs(), [1, None, None]) == Reply(applied=False, record=None)
    for answers in ([ResponseError("NOPERM"), None, None], [1, None, ResponseError("NOPERM")]):
        with pytest.raises(StoreSetupError):
            waited(wire.RedisVerbs(), answers)


@pytest.mark.parametrize("verbs", [wire.RedisVerbs, Cluster])
def test_a_claim_that_waits_at_the_wrong_server_was_not_run(verbs: Callable[[], wire.RedisVerbs]) -> None:
    """Its waiter goes on in the other way, which follows the slot: a refusal at once would have it ask again and again."""
    with pytest.raises(StoreUnavailableError):
        waited(verbs(), [MOVED] * 3)


def end_of(exchange: Any, answer: Any) -> Any:
    """Return what *exchange* returns after its last *answer*."""
    with pytest.raises(StopIteration) as ended:
        exchange.send(answer)
    return ended.value.value


def test_a_list_of_all_gives_each_record_once_and_passes_over_names_that_are_no_text() -> None:
    """Each node is asked for its names, which it may repeat, and for what stands under them."""
    one, two = held("one", 3), held("two", 3)
    pages = iter(wire.RedisVerbs().scan(""))

    first = next(pages)
    next(first)
    named = first.send(["n"])
    shown = first.send([[b"7", [b"\xff", b"one"]]])
    assert list(end_of(first, [[None] * 6, row(one)])) == [one]
    second = next(pages)
    next(second)
    assert second.send([[b"0", [b"one", b"two"]]]).answers == 1
    assert list(end_of(second, [row(two)])) == [two]

    assert (named.node, shown.node, shown.answers) == ("n", "n", 2)
    assert list(pages) == []


INFORMED = b"redis_version:7.2.0\r\naof_enabled:1\r\nrole:master\r\nmaxmemory_policy:%s\r\n"


def test_what_one_primary_lacks_the_store_lacks() -> None:
    """Each is asked in its share of the time; one that does not answer says nothing."""
    exchange = wire.RedisVerbs().guarantees()
    next(exchange)
    asked = [
        exchange.send(["n", "m", "o"]),
        exchange.send([INFORMED % b"allkeys-lru", [b"appendfsync", b"always"]]),
        exchange.throw(TimeoutError("x")),
    ]

    found = end_of(exchange, [INFORMED % b"noeviction", ResponseError("NOPERM")])

    assert [(each.node, each.share) for each in asked] == [("n", 3), ("m", 2), ("o", 1)]
    assert (found.durable, [name for name, _ in found.unsafe]) == (False, ["redis-allkeys-policy"])


def test_primaries_that_all_fail_are_the_failure() -> None:
    """There is nothing to say of them."""
    exchange = wire.RedisVerbs().guarantees()
    next(exchange)
    exchange.send(["n", "m"])
    exchange.send([ResponseError("LOADING x"), None])

    with pytest.raises(TimeoutError):
        exchange.throw(TimeoutError("x"))


def test_closing_ends_a_search_for_the_slots() -> None:
    """It may wait for a node that is gone, for as long as the driver does."""

    async def scene() -> bool:
        link = AsyncConnections(redis.asyncio.RedisCluster(host="127.0.0.1", port=1), b"c")
        link._asking = asyncio.create_task(asyncio.sleep(60))
        await link.close()
        return link._asking.cancelled()

    assert asyncio.run(scene())


def test_a_forked_child_asks_a_cluster_for_its_slots_though_the_parent_was_asking() -> None:
    """The thread that asked is not there."""
    servers = Servers(redis.RedisCluster.__new__(redis.RedisCluster), redis, str)
    assert [servers.wants_refresh(ConnectionError("x"), None) for _ in range(2)] == [True, False]

    servers.after_fork_in_child()

    assert servers.wants_refresh(ConnectionError("x"), None)

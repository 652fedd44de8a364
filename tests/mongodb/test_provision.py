"""The conversations with servers that nobody has here: what they are asked, and what is made of their answers."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from dlock_core.errors import StoreSetupError, StoreUnavailableError
from dlock_core.store import Grade
from dlock_mongodb.options import MongoDBStoreOptions
from dlock_mongodb.provision import Conversation, Facts, inspection, provisioning

NAMES = MongoDBStoreOptions(database="db", collection="locks")
HELLO: dict[str, Any] = {
    "ok": 1,
    "isWritablePrimary": True,
    "maxWireVersion": 21,
    "setName": "rs",
    "hosts": ["a", "b", "c"],
}
SHARDED: dict[str, Any] = {"ok": 1, "isWritablePrimary": True, "maxWireVersion": 21, "msg": "isdbgrid"}
COLLECTION = {"name": "locks", "type": "collection", "options": {}}
ID_INDEX = {"name": "_id_", "key": {"_id": 1}}
DENIED = {"ok": 0, "code": 13, "codeName": "Unauthorized", "errmsg": "not authorized"}


def cursor(*documents: Any) -> dict[str, Any]:
    """Return an answer with a cursor."""
    return {"ok": 1, "cursor": {"id": 0, "firstBatch": list(documents)}}


class Pretended:
    """A server as its answers say; claims are carried out as by MongoDB unless *claims* says otherwise."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "hello": HELLO,
            "buildInfo": {"ok": 1, "version": "8.0.4", "gitVersion": "x", "versionArray": [8]},
            "listCollections": cursor(COLLECTION),
            "listIndexes": cursor(ID_INDEX),
            "find": cursor(),
            "aggregate": cursor(),
            "killCursors": {"ok": 1},
            "create": {"ok": 1},
            **answers,
        }
        self.asked: list[str] = []
        self.stands: dict[str, Any] | None = None

    def talk(self, conversation: Conversation) -> Facts:
        """Hold the conversation."""
        answer: Any = None
        while True:
            try:
                asked = conversation.send(answer)
            except StopIteration as end:
                facts: Facts = end.value
                return facts
            assert not asked.checked
            name = next(iter(asked.document))
            self.asked.append(f"{asked.database}.{name}")
            answer = self.answers[name] if name in self.answers else self._claimed(asked.document)

    def _claimed(self, command: dict[str, Any]) -> dict[str, Any]:
        assert not isinstance(command["query"]["_id"], str)  # so it is no lock
        if self.stands is None:
            new = command["update"][0]["$replaceWith"]["$cond"][1]["$mergeObjects"][0]["$literal"]
            self.stands = {**new, "token": 1}
        return {"ok": 1, "value": self.stands}


def test_a_replica_set_of_three_is_grade_a() -> None:
    """Nothing of it has to be accepted by name."""
    server = Pretended()

    facts = server.talk(inspection(NAMES))

    assert facts.guarantees.grade is Grade.A
    assert facts.guarantees.version == "8.0.4"
    told = facts.guarantees
    assert (told.unsafe, told.deletes, told.refusal_linearizable, told.durable) == ((), False, False, True)
    assert (facts.notifies, facts.read_level) == (True, "linearizable")
    assert server.asked.count("db.findAndModify") == 2
    assert server.asked[-1] == "db.killCursors"  # what was tried stays nowhere


def test_a_replica_set_of_one_loses_with_its_disk() -> None:
    """So it is grade B."""
    assert Pretended(hello={**HELLO, "hosts": ["a"]}).talk(inspection(NAMES)).guarantees.grade is Grade.B


def test_the_oldest_server_is_taken() -> None:
    """MongoDB 4.4."""
    assert Pretended(hello={**HELLO, "maxWireVersion": 9}).talk(inspection(NAMES)).notifies


def test_a_standalone_must_be_accepted_by_name() -> None:
    """It has no majority, no linearizable reads and no change streams."""
    hello = {"ok": 1, "isWritablePrimary": True, "maxWireVersion": 21}
    refused = {"ok": 0, "code": 40573, "errmsg": "The $changeStream stage is only supported on replica sets"}

    facts = Pretended(hello=hello, aggregate=refused).talk(inspection(NAMES))

    [(name, reason)] = facts.guarantees.unsafe
    assert name == "mongodb-standalone"
    assert "majority" in reason
    assert (facts.notifies, facts.read_level) == (False, "local")


@pytest.mark.parametrize("ferret", ["v1.24.0", "1.17.0"])
def test_ferretdb_1_is_refused_by_name(ferret: str) -> None:
    """No name in allow_unsafe lets it through."""
    with pytest.raises(StoreSetupError, match=r"FerretDB 1\.x"):
        Pretended(buildInfo={"ok": 1, "version": "7.0.42", "ferretdbVersion": ferret}).talk(inspection(NAMES))


def test_what_only_speaks_the_language_is_called_so() -> None:
    """Its version is not MongoDB's."""
    told = (
        Pretended(buildInfo={"ok": 1, "version": "7.0.42", "ferretdbVersion": "v2.1.0"})
        .talk(inspection(NAMES))
        .guarantees
    )

    assert told.version == "7.0.42, as told by ferretdbVersion v2.1.0"
    assert any("not MongoDB itself" in note for note in told.notes)


@pytest.mark.parametrize(
    ("answers", "match"),
    [
        ({"hello": {**HELLO, "maxWireVersion": 8}}, "wire version"),
        ({"hello": {**HELLO, "isWritablePrimary": False, "primary": "b"}}, "not the primary"),
        ({"listCollections": cursor({**COLLECTION, "type": "view", "options": {"viewOn": "x"}})}, "viewOn"),
        ({"listCollections": cursor({**COLLECTION, "type": "timeseries"})}, "timeseries"),
        ({"listCollections": cursor({**COLLECTION, "options": {"collation": {"locale": "en"}}})}, "collation"),
        ({"listCollections": cursor({**COLLECTION, "options": {"capped": True}})}, "capped"),
        ({"listIndexes": cursor(ID_INDEX, {"name": "at_1", "expireAfterSeconds": 0})}, "TTL index 'at_1'"),
        ({"listIndexes": cursor(ID_INDEX, {"name": "o", "unique": True})}, "unique index 'o'"),
        ({"hello": SHARDED, "find": cursor({"_id": "db.locks", "key": {"owner": 1}})}, "sharded by another key"),
        ({"hello": SHARDED, "find": cursor({"_id": "db.locks", "key": {"_id": 1, "x": 1}})}, "sharded by another key"),
        (
            {"findAndModify": {"ok": 1, "value": {"rvn": "always another", "state": "held", "token": None}}},
            "carried out",
        ),
        ({"findAndModify": {"ok": 1, "value": {"rvn": "r", "state": "free", "token": 1}}}, "carried out"),
    ],
)
def test_what_does_not_fit_is_named(answers: dict[str, Any], match: str) -> None:
    """Before anything is locked."""
    with pytest.raises(StoreSetupError, match=match):
        Pretended(**answers).talk(inspection(NAMES))


@pytest.mark.parametrize(
    "answers",
    [
        {"listIndexes": cursor({**ID_INDEX, "unique": True}, {"name": "owner_1", "key": {"owner": 1}})},
        {"findAndModify": {"ok": 0, "code": 11000}},
        {"findAndModify": {"ok": 1, "value": None}},
    ],
    ids=["an index", "another that looks at the same time", "a server that answers nothing"],
)
def test_what_harms_nobody_is_taken(answers: dict[str, Any]) -> None:
    """An index that keeps no lock from being made, and claims that say nothing either way."""
    assert Pretended(**answers).talk(inspection(NAMES)).notifies


def test_an_election_is_no_fault_of_the_set_up() -> None:
    """With directConnection the driver asks a server that is no primary; while the set has none, trying again may help."""
    with pytest.raises(StoreUnavailableError, match="electing"):
        Pretended(hello={**HELLO, "isWritablePrimary": False}).talk(inspection(NAMES))


def test_a_claim_that_overwrites_a_held_lock_is_found_out() -> None:
    """The second claim of the self-test shows another holder."""

    class Overwriting(Pretended):
        def _claimed(self, command: dict[str, Any]) -> dict[str, Any]:
            self.stands = None
            return super()._claimed(command)

    with pytest.raises(StoreSetupError, match="a claim of a held lock changed it"):
        Overwriting().talk(inspection(NAMES))


@pytest.mark.parametrize("refused", ["hello", "listCollections", "listIndexes", "findAndModify"])
def test_a_missing_right_comes_out(refused: str) -> None:
    """As the driver's error, which the store translates."""
    with pytest.raises(OperationFailure):
        Pretended(**{refused: DENIED}).talk(inspection(NAMES))


@pytest.mark.parametrize("refused", ["buildInfo", "aggregate"])
def test_what_is_only_convenient_may_be_denied(refused: str) -> None:
    """The version stays unknown, or waiters poll."""
    facts = Pretended(**{refused: DENIED}).talk(inspection(NAMES))

    assert facts.notifies is (refused != "aggregate")
    assert facts.guarantees.version.startswith("unknown") is (refused == "buildInfo")


@pytest.mark.parametrize("key", [{"_id": 1}, {"_id": "hashed"}])
def test_a_sharded_collection_must_be_sharded_by_its_id(key: dict[str, Any]) -> None:
    """Only then is the _id unique; whoever may not look is told so in the notes. Its reads are linearizable as those of a replica set."""
    facts = Pretended(hello=SHARDED, find=cursor({"_id": "db.locks", "key": key})).talk(inspection(NAMES))
    assert facts.read_level == "linearizable"
    assert (facts.guarantees.grade, facts.guarantees.unsafe) == (Grade.A, ())
    assert any(
        "sharded" in note for note in Pretended(hello=SHARDED, find=DENIED).talk(inspection(NAMES)).guarantees.notes
    )


def test_looking_makes_nothing() -> None:
    """Where the collection is missing nothing is written, not even the self-test."""
    server = Pretended(listCollections=cursor())

    with pytest.raises(StoreSetupError, match="does not exist; 'dlock init"):
        server.talk(inspection(NAMES))

    assert not {"db.create", "db.findAndModify"} & set(server.asked)


@pytest.mark.parametrize("answer", [{"ok": 1}, {"ok": 0, "code": 48, "codeName": "NamespaceExists"}])
def test_provisioning_may_be_repeated(answer: dict[str, Any]) -> None:
    """A collection that is there is looked at, not made."""
    server = Pretended(create=answer)

    assert server.talk(provisioning(NAMES)).notifies
    assert server.asked[0] == "db.create"


def test_provisioning_without_the_right_fails() -> None:
    """It does not go on as if nothing had been."""
    with pytest.raises(OperationFailure):
        Pretended(create=DENIED).talk(provisioning(NAMES))

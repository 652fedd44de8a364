"""Stores that are right but in one branch, for one value or beside one other call, as data."""

from __future__ import annotations

import asyncio
import re
import unicodedata

from dlock_conformance.broken import faulty_beside
from dlock_conformance.broken import faulty_branches as faulty
from dlock_conformance.broken.breaking import answering, around, asking, for_threads, setting
from dlock_conformance.broken.faulty import keyed, scanning
from dlock_conformance.broken.faulty_branches import altering, keeping, losing, storing
from dlock_conformance.broken.faulty_calls import AsyncAnswersForGood
from dlock_conformance.broken.faulty_cells import hides, keeps
from dlock_conformance.broken.faulty_forms import expecting_in
from dlock_conformance.broken.faulty_links import BrokenLinks, telling
from dlock_conformance.broken.faulty_lives import costing
from dlock_conformance.broken.faulty_pools import used_again_after
from dlock_conformance.broken.steps import Broken
from dlock_conformance.harness import Colour
from dlock_conformance.wire.errors import NotSentError
from dlock_core.record import State

__all__ = ["LINKS_OF_BRANCHES", "OF_BRANCHES"]

_SESSION = ("session", "members", "beat")
_MARKS = ("times", "process", "stamp", "broken")


_BRANCHES: tuple[Broken, ...] = (
    # ---- what sessions need, in one form of a write
    Broken("a claim that waits loses what sessions need", "S11", storing("claim_when_free", losing(*_SESSION))),
    Broken("a claim that waits loses times and marks", "S11", storing("claim_when_free", losing(*_MARKS))),
    Broken(
        "a break loses what sessions need", "S11", storing("replace", losing(*_SESSION), lambda r: not r.record.held)
    ),
    Broken(
        "a break loses times and process",
        "S11",
        storing("replace", losing("times", "process"), lambda r: not r.record.held),
    ),
    Broken(
        "a break in a batch loses the times",
        "S11",
        storing("replace_many", losing("times"), lambda r: not r.record.held),
    ),
    Broken(
        "a break in a batch loses the members",
        "S11",
        storing("replace_many", losing("members"), lambda r: not r.record.held),
    ),
    Broken(
        "a release that hides loses times and marks",
        "S11",
        storing("release", losing(*_MARKS), lambda r: hides(r.record, r)),
    ),
    Broken(
        "a release that hides loses the beat", "S11", storing("release", losing("beat"), lambda r: hides(r.record, r))
    ),
    Broken("a claim keeps the session of the tombstone", "S11", storing("claim", keeping("session", "members"))),
    Broken("a claim keeps the beat of the tombstone", "S11", storing("claim", keeping("beat"))),
    Broken("several claims keep the process of the tombstone", "S11", storing("claim_many", keeping("process"))),
    Broken(
        "a claim that waits keeps the session of the tombstone", "S11", storing("claim_when_free", keeping("session"))
    ),
    Broken("a replace keeps the members that have left", "S11", storing("replace", keeping("members"))),
    Broken("a batch keeps the session that was left", "S11", storing("replace_many", keeping("session"))),
    Broken(
        "a renewal of a shared lock compares the RVN only",
        "S5",
        asking("replace", expecting_in(lambda _, r: r.record.members is not None)),
    ),
    Broken(
        "a renewal of a session compares the RVN only",
        "S5",
        asking("replace", expecting_in(lambda _, r: r.record.beat is not None)),
    ),
    Broken(
        "a release under a session compares the RVN only",
        "S6",
        asking("release", expecting_in(lambda old, _: old.session is not None)),
    ),
    # ---- values
    Broken("lines in data end as those of text", "S11", altering("data", lambda data: data.replace(b"\r\n", b"\n"))),
    Broken("data is trimmed", "S11", altering("data", lambda data: data.rstrip(b" \r\n"))),
    Broken(
        "the mark of UTF-8 before data is lost",
        "S11",
        altering("data", lambda data: data.removeprefix(b"\xef\xbb\xbf")),
    ),
    Broken(
        "data of digits is stored as a number",
        "S11",
        altering("data", lambda data: b"%d" % int(data) if re.fullmatch(rb"[0-9]{1,18}", data) else data),
    ),
    Broken("names of attributes are folded", "S11", faulty.named_otherwise(str.lower)),
    Broken("names of attributes are cut at 64", "S11", faulty.named_otherwise(lambda name: name[:64])),
    Broken(
        "names of attributes are normalised",
        "S11",
        faulty.named_otherwise(lambda name: unicodedata.normalize("NFC", name)),
    ),
    Broken("owners are folded", "S11", altering("owner", str.lower)),
    Broken("owners are normalised", "S11", altering("owner", lambda owner: unicodedata.normalize("NFC", owner))),
    Broken("owners end at the first bar", "S11", altering("owner", lambda owner: owner.partition("|")[0])),
    Broken("owners lose spaces at their start", "S11", altering("owner", str.lstrip)),
    Broken(
        "an owner of digits is stored as a number",
        "S11",
        altering("owner", lambda owner: str(int(owner)) if re.fullmatch("[0-9]{1,18}", owner) else owner),
    ),
    Broken(
        "a stamp of zero is none",
        "S11",
        storing(faulty.WRITES, lambda _, n: losing("stamp")(None, n) if n.stamp and not n.stamp.at_ms else n),
    ),
    Broken(
        "times end in 2038",
        "S11",
        altering("times", lambda times: times._make(min(each, 2**31 - 1) for each in times)),
    ),
    Broken(
        "weights of members are doubles",
        "S11",
        altering(
            "members", lambda m: m._replace(members=tuple(e._replace(weight=int(float(e.weight))) for e in m.members))
        ),
    ),
    Broken(
        "members that have all left are none",
        "S11",
        storing(
            faulty.WRITES, lambda _, n: n if n.members is None or n.members.members else losing("members")(None, n)
        ),
    ),
    Broken(
        "sessions without a member are dropped",
        "S11",
        altering(
            "members", lambda m: m._replace(sessions=m.sessions[: 1 + max((e.session for e in m.members), default=-1)])
        ),
    ),
    Broken(
        "of notes about one key one is kept",
        "S11",
        altering("beat", lambda b: b._replace(notes=tuple({(e.key, e.kind): e for e in b.notes}.values()))),
    ),
    Broken(
        "the key of a session is cut at 255",
        "S11",
        altering("session", lambda s: s._replace(key=s.key[:255])),
    ),
    Broken(
        "the grant of a session is known in 32 bits",
        "S11",
        altering("session", lambda s: s._replace(fencing_token=min(s.fencing_token, 2**31 - 1))),
    ),
    Broken(
        "a beat has no place for a session beside it",
        "S11",
        storing(faulty.WRITES, lambda _, n: losing("session")(None, n) if n.beat else n),
    ),
    Broken(
        "a break writes its token in 32 bits",
        "S11",
        storing("replace", lambda _, n: n if n.held else faulty.with_token(n, min(n.fencing_token, 2**32 - 1))),
    ),
    # ---- tokens
    Broken(
        "a claim is given the token that it asks for, below that which stood there",
        "S3",
        around("claim", faulty.given_what_it_asks_for),
    ),
    Broken(
        "a claim that waits is given the token that it asks for",
        "S3",
        around("claim_when_free", faulty.given_what_it_asks_for),
    ),
    Broken("what has the last token cannot be renewed", "S18", around("replace", faulty.ending_with_the_tokens)),
    Broken(
        "a claim that asks for a token goes below the floor of a prune",
        "P2",
        around("claim", faulty.below_the_floor_where(lambda r: r.record.fencing_token > 1)),
    ),
    Broken(
        "a prune raises the floor by what is free, not by what is gone",
        "P2",
        around("prune", faulty.floor_of(lambda record: record.state is State.FREE)),
    ),
    # ---- keys
    Broken("keys that end in a number are told apart by it", "S12", keyed(faulty.number_at_the_end)),
    Broken("spaces in keys are one", "S12", keyed(lambda key: re.sub(" +", " ", key))),
    Broken("a colon in keys is a slash", "S12", keyed(lambda key: key.replace(":", "/"))),
    Broken("keys lose variation selectors", "S12", keyed(lambda key: key.replace("\ufe0f", ""))),
    Broken("keys have one sigma", "S12", keyed(lambda key: key.replace("\u03c2", "\u03c3"))),
    Broken("keys are cut at 1023 bytes", "S12", keyed(lambda key: key.encode()[:1023].decode(errors="ignore"))),
    Broken("several claims trim their keys", "M1", faulty.keyed_in("claim_many", str.rstrip)),
    Broken("a claim that waits folds its key", "W1", faulty.keyed_in("claim_when_free", str.lower)),
    Broken("waiters are known by trimmed keys", "N3", faulty_beside.waiting_by(str.rstrip)),
    # ---- batches
    Broken("a batch keeps all payloads if its first does", "B1", around("replace_many", faulty.keeping_as_the_first)),
    Broken(
        "a batch ends at what is foreign, and tells the rest as done",
        "B2",
        around("replace_many", faulty.done_after_what_is_foreign),
    ),
    Broken(
        "a refusal in a batch that keeps shows what was asked for",
        "B1",
        answering("replace_many", faulty.shown_what_was_asked),
    ),
    Broken("refusals of a batch show what was seen first", "S8", faulty.refused_with_the_first_seen("replace_many")),
    Broken(
        "refusals of several claims show what was seen first", "S8", faulty.refused_with_the_first_seen("claim_many")
    ),
    Broken("a batch forgets those who wait", "N1", around("replace_many", faulty.forgetting_who_waits)),
    # ---- scans and reads
    Broken("a scan trims its prefix", "S10", scanning(lambda o, prefix: o.key.startswith(prefix.rstrip()))),
    Broken("a scan cuts its prefix at 255", "S10", scanning(lambda o, prefix: o.key.startswith(prefix[:255]))),
    Broken(
        "a scan leaves long keys out", "S10", scanning(lambda o, prefix: o.key.startswith(prefix) and len(o.key) < 512)
    ),
    Broken("a scan ends where a key has gone", "S10", around("scan", faulty_beside.ending_at_what_is_gone)),
    Broken(
        "reads beside an open scan are of its transaction",
        "S10",
        for_threads(faulty_beside.ScansPin),
        colours=(Colour.SYNC,),
    ),
    Broken(
        "read_age shows what this store wrote last",
        "S9",
        setting(faces=(faulty_beside.Remembers, faulty_beside.AsyncRemembers)),
    ),
    Broken("a read_age sweeps what is gone", "C1", around("read_age", faulty.sweeping_what_it_reads)),
    # ---- ages and removal
    Broken("an age is told by the writer's clock", "C2", faulty.by_the_writers_clock),
    Broken(
        "an age is read before its record",
        "C2",
        around("read_age", faulty.age_before_the_record),
        colours=(Colour.SYNC,),
    ),
    Broken("a prune goes by the writer's clock", "P1", faulty.by_the_writers_clock),
    Broken("a prune removes what cannot be read", "P1", around("prune", faulty.pruning_what_is_foreign)),
    Broken(
        "a prune compares tokens in 32 bits",
        "P1",
        around(
            "prune",
            faulty.comparing_listed(lambda o, n: o.rvn == n.rvn and not (o.fencing_token - n.fencing_token) % 2**32),
        ),
    ),
    Broken(
        "a prune compares RVNs without their case",
        "P1",
        around(
            "prune",
            faulty.comparing_listed(lambda o, n: o.rvn.lower() == n.rvn.lower() and o.fencing_token == n.fencing_token),
        ),
    ),
    # ---- waiting
    Broken(
        "what must exist is looked at as a wait begins",
        "W1",
        for_threads(faulty_beside.DecidesFirst),
        colours=(Colour.SYNC,),
    ),
    Broken(
        "a claim that waits keeps the payload that it saw first",
        "W1",
        for_threads(faulty_beside.KeepsTheFirst),
        colours=(Colour.SYNC,),
    ),
    Broken(
        "a claim that waits is granted after close",
        "S22",
        for_threads(faulty_beside.WaitsWhenClosed),
        colours=(Colour.SYNC,),
    ),
    # ---- the life of records
    Broken("guarantees sweep what is gone", "S18", faulty.told_swept(lambda record: record.state is State.GONE)),
    Broken("guarantees sweep what is free", "S18", faulty.told_swept(lambda record: record.state is State.FREE)),
    Broken(
        "several claims sweep what is gone",
        "S18",
        around("claim_many", faulty.sweeping_beside(lambda record: record.state is State.GONE)),
    ),
    Broken(
        "a batch sweeps what is gone",
        "S18",
        around("replace_many", faulty.sweeping_beside(lambda record: record.state is State.GONE)),
    ),
    Broken(
        "what asked for a token ends by itself",
        "S18",
        faulty.ending_where("claim", lambda r: r.record.fencing_token > 1),
    ),
    Broken("what must have existed ends by itself", "S18", faulty.ending_where("claim", lambda r: r.must_exist)),
    Broken(
        "what was released with times ends by itself",
        "S18",
        faulty.ending_where("release", lambda r: r.record.times is not None),
    ),
    Broken(
        "a renewal of a shared lock ends by itself",
        "S18",
        faulty.ending_where("replace", lambda r: r.record.members is not None),
    ),
    Broken(
        "a tombstone with a kept payload ends by itself",
        "S18",
        faulty.ending_where("release", lambda r: keeps(r.record, r)),
    ),
    # ---- requests
    Broken(
        "a release with times asks first",
        "S23",
        around("release", costing(lambda r, _: r.record.times is not None)),
    ),
    Broken(
        "a renewal of a shared lock asks first",
        "S23",
        around("replace", costing(lambda r, _: r.record.members is not None)),
    ),
    Broken(
        "a renewal of a session asks first", "S23", around("replace", costing(lambda r, _: r.record.beat is not None))
    ),
)
# What is broken is in the server or in the face: one base tells.
OF_BRANCHES: tuple[Broken, ...] = tuple(each._replace(on_socket=False) for each in _BRANCHES)

LINKS_OF_BRANCHES: tuple[BrokenLinks, ...] = (
    BrokenLinks(
        "a wait that finds no server raises what the driver does",
        "S17",
        *telling(
            lambda verb, _, error: (
                ConnectionRefusedError(str(error)) if verb == "wait" and isinstance(error, NotSentError) else None
            )
        ),
    ),
    BrokenLinks("several claims, releases, prunes and ages swallow a cancellation", "S17", None, AsyncAnswersForGood),
    BrokenLinks("a connection is used again whose scan was given up", "S15", *used_again_after(TimeoutError, "scan")),
    BrokenLinks(
        "a connection is used again whose read_age was given up", "S15", *used_again_after(TimeoutError, "read_age")
    ),
    BrokenLinks(
        "a connection is used again whose scan was cancelled",
        "S15",
        None,
        used_again_after(asyncio.CancelledError, "scan")[1],
    ),
    BrokenLinks(
        "a connection is used again whose prune was cancelled",
        "S15",
        None,
        used_again_after(asyncio.CancelledError, "prune")[1],
    ),
)

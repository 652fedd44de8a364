"""Stores with a fault in a step, in a read or in what is stored: S1 to S12, as data."""

from __future__ import annotations

import fnmatch
import operator
import unicodedata
from dataclasses import replace
from typing import NamedTuple

from dlock_conformance.broken import breaking, faulty, faulty_waiting
from dlock_conformance.broken.breaking import STEPS, Patch, answering, around, asking, put, standing, writing
from dlock_conformance.harness import Colour
from dlock_core.record import State
from dlock_core.store import Expect

__all__ = ["OF_STEPS", "Broken"]


class Broken(NamedTuple):
    """A store that a test of *clause* must reject, in *colours* and, where its fault is not in the wire itself, *on_socket* too."""

    name: str
    clause: str
    patch: Patch
    colours: tuple[Colour, ...] = tuple(Colour)
    on_socket: bool = True


OF_STEPS: tuple[Broken, ...] = (
    # ---- races
    Broken(
        "a claim looks first and writes then",
        "S1",
        around("claim", breaking.claim_in_two_steps),
        colours=(Colour.SYNC,),
    ),
    Broken(
        "a replace compares first and writes then",
        "S1",
        around("replace", breaking.change_in_two_steps),
        colours=(Colour.SYNC,),
    ),
    Broken(
        "a release compares first and writes then",
        "S1",
        around("release", breaking.change_in_two_steps),
        colours=(Colour.SYNC,),
    ),
    # ---- claims
    Broken("a claim takes a held record", "S2", around("claim", breaking.claim_of_a_held_record)),
    Broken("a held record lapses by the store's clock", "S2", around("claim", breaking.claim_of_a_lapsed_record)),
    Broken(
        "a tombstone counts as absence",
        "S2",
        asking("claim", lambda _, r: r._replace(expect=Expect.ANY) if r.expect is Expect.ABSENT else r),
    ),
    Broken(
        "a claim compares the token only",
        "S2",
        asking(
            "claim",
            lambda o, r: (
                r._replace(expect=o.version)
                if o and isinstance(r.expect, tuple) and r.expect[1] == o.fencing_token
                else r
            ),
        ),
    ),
    Broken(
        "a claim compares the RVN only",
        "S2",
        asking(
            "claim",
            lambda o, r: (
                r._replace(expect=o.version) if o and isinstance(r.expect, tuple) and r.expect[0] == o.rvn else r
            ),
        ),
    ),
    Broken("a claim takes a smaller token", "S2", asking("claim", breaking.expecting_what_stands(operator.le))),
    Broken("a claim takes a greater token", "S2", asking("claim", breaking.expecting_what_stands(operator.ge))),
    Broken("a tombstone can never be claimed", "S2", asking("claim", lambda _, r: r._replace(expect=Expect.ABSENT))),
    Broken("the holder's ticket is granted again", "S2", faulty_waiting.granting_to_the_ticket),
    Broken("a ticket gets its old answer", "S2", faulty_waiting.answering_by_the_ticket),
    Broken("must_exist is not looked at", "S2", asking("claim", lambda _, r: r._replace(must_exist=False))),
    Broken(
        "a gone record counts as existing",
        "S2",
        asking("claim", lambda o, r: r._replace(must_exist=False) if o and o.state is State.GONE else r),
    ),
    # ---- tokens
    Broken(
        "the token is drawn before the step",
        "S3",
        around("claim", breaking.token_before_the_step),
        colours=(Colour.SYNC,),
    ),
    Broken(
        "the least token that is asked for is not looked at",
        "S3",
        writing("claim", lambda o, _, n: replace(n, fencing_token=o.fencing_token + 1 if o else 1)),
    ),
    Broken(
        "a claim keeps the token",
        "S3",
        writing("claim", lambda o, _, n: replace(n, fencing_token=o.fencing_token) if o else n),
    ),
    Broken("the tokens of all keys are counted together", "S3", around("claim", breaking.token_of_all_keys)),
    Broken("a refused claim uses up a token", "S3", around("claim", breaking.token_that_burns)),
    # ---- payloads
    Broken("a claim always brings its own payload", "S4", asking("claim", lambda _, r: r._replace(keep_payload=False))),
    Broken("a claim always keeps the payload", "S4", asking("claim", lambda _, r: r._replace(keep_payload=True))),
    Broken(
        "the payload of a gone record comes back",
        "S4",
        writing("claim", lambda o, r, n: replace(n, data=o.data) if o and r.keep_payload else n),
    ),
    Broken("a replace never changes the payload", "S4", asking("replace", lambda _, r: r._replace(keep_payload=True))),
    Broken("a renewal drops the payload", "S4", asking("replace", lambda _, r: r._replace(keep_payload=False))),
    Broken("a release drops the payload", "S4", asking("release", lambda _, r: r._replace(keep_payload=False))),
    Broken(
        "a replace keeps the owner", "S4", writing("replace", lambda o, _, n: replace(n, owner=o.owner) if o else n)
    ),
    Broken(
        "None as data keeps the data",
        "S4",
        writing("replace", lambda o, _, n: replace(n, data=o.data) if o and n.data is None else n),
    ),
    Broken(
        "a kept payload is cut at 32 KiB",
        "S4",
        writing(STEPS, lambda _, r, n: replace(n, data=n.data and n.data[:32768]) if r.keep_payload else n),
    ),
    Broken(
        "a kept payload is written as text",
        "S4",
        writing(
            STEPS,
            lambda _, r, n: (
                replace(n, data=n.data and n.data.decode(errors="replace").encode()[:65536]) if r.keep_payload else n
            ),
        ),
    ),
    Broken(
        "kept attributes become text",
        "S4",
        writing(
            STEPS,
            lambda _, r, n: replace(n, attributes=tuple((k, str(v)) for k, v in n.attributes)) if r.keep_payload else n,
        ),
    ),
    Broken(
        "a break drops the payload",
        "S4",
        asking("replace", lambda _, r: r if r.record.held else r._replace(keep_payload=False)),
    ),
    # ---- replaces
    Broken(
        "a replace ignores the RVN",
        "S5",
        asking("replace", lambda o, r: r._replace(expected=r.expected._replace(rvn=o.rvn)) if o else r),
    ),
    Broken(
        "a replace ignores the token",
        "S5",
        asking("replace", lambda o, r: r._replace(expected=o.version) if o and o.rvn == r.expected.rvn else r),
    ),
    Broken("a replace takes a smaller token", "S5", asking("replace", breaking.expecting_what_stands(operator.le))),
    Broken("a replace takes a greater token", "S5", asking("replace", breaking.expecting_what_stands(operator.ge))),
    Broken(
        "a replace compares the start of the RVN",
        "S5",
        asking("replace", breaking.expecting_the_rvn_of(lambda stands, expects: expects.startswith(stands))),
    ),
    Broken(
        "a replace compares RVNs without spaces",
        "S5",
        asking("replace", breaking.expecting_the_rvn_of(lambda stands, expects: expects.strip() == stands)),
    ),
    Broken(
        "a renewal brings a released lock back",
        "S5",
        around("replace", breaking.unless(lambda o, r: o.held or o.version != r.expected)),
    ),
    Broken(
        "a replace creates a record",
        "S5",
        around("replace", lambda w, s, r: s(r) if standing(w, r) else put(w, r.record, r.record.key)),
    ),
    Broken(
        "a renewal mints a token",
        "S5",
        writing("replace", lambda o, _, n: replace(n, fencing_token=o.fencing_token + 1) if o else n),
    ),
    Broken(
        "a takeover keeps the token",
        "S5",
        writing("replace", lambda o, _, n: replace(n, fencing_token=o.fencing_token) if o else n),
    ),
    Broken(
        "a replace compares the owner only",
        "S5",
        around("replace", breaking.unless(lambda o, r: not o.held or o.owner != r.record.owner)),
    ),
    Broken(
        "a replace compares RVNs without their case",
        "S5",
        asking(
            "replace",
            lambda o, r: (
                r._replace(expected=r.expected._replace(rvn=o.rvn))
                if o and o.rvn.lower() == r.expected.rvn.lower()
                else r
            ),
        ),
    ),
    Broken(
        "a replace always leaves a held record", "S5", writing("replace", lambda _, __, n: replace(n, state=State.HELD))
    ),
    # ---- releases
    Broken("a release has no condition", "S6", around("release", breaking.unless(lambda _, __: False))),
    Broken(
        "a release ignores the RVN",
        "S6",
        asking("release", lambda o, r: r._replace(expected=r.expected._replace(rvn=o.rvn)) if o else r),
    ),
    Broken(
        "a release ignores the token",
        "S6",
        asking("release", lambda o, r: r._replace(expected=o.version) if o and o.rvn == r.expected.rvn else r),
    ),
    Broken("a release takes a smaller token", "S6", asking("release", breaking.expecting_what_stands(operator.le))),
    Broken("a release takes a greater token", "S6", asking("release", breaking.expecting_what_stands(operator.ge))),
    Broken(
        "a release compares the start of the RVN",
        "S6",
        asking("release", breaking.expecting_the_rvn_of(lambda stands, expects: expects.startswith(stands))),
    ),
    Broken("a release compares nothing but held", "S6", around("release", breaking.unless(lambda o, _: not o.held))),
    Broken("a second release is applied", "S6", around("release", breaking.unless(lambda o, _: o.held))),
    Broken("a release deletes the record", "S6", writing("release", lambda _, __, ___: None)),
    Broken("a release keeps the RVN", "S6", writing("release", lambda o, _, n: replace(n, rvn=o.rvn) if o else n)),
    Broken(
        "a release makes a gone record free", "S6", writing("release", lambda _, __, n: replace(n, state=State.FREE))
    ),
    Broken(
        "a release creates a record",
        "S6",
        around("release", lambda w, s, r: s(r) if standing(w, r) else put(w, r.record, r.record.key)),
    ),
    # ---- replies
    Broken(
        "a grant carries the record as asked for",
        "S7",
        answering(STEPS, lambda r, y: y._replace(record=r.record) if y.applied else y),
    ),
    Broken(
        "a grant carries no record",
        "S7",
        answering("release", lambda _, y: y._replace(record=None) if y.applied else y),
    ),
    Broken(
        "a refusal carries no record", "S8", answering(STEPS, lambda _, y: y if y.applied else y._replace(record=None))
    ),
    Broken(
        "a refusal hides a record that is not held",
        "S8",
        answering(STEPS, lambda _, y: y if y.applied or (y.record and y.record.held) else y._replace(record=None)),
    ),
    Broken("a refusal is an exception", "S8", answering(STEPS, faulty.refusal_by_exception)),
    Broken("a refusal carries an older record", "S8", faulty.cached_refusals),
    Broken(
        "a refusal carries the record as asked for",
        "S8",
        answering(STEPS, lambda r, y: y if y.applied else y._replace(record=r.record)),
    ),
    # ---- reading
    Broken("reads come from a replica that lags", "S9", faulty.stale_reads),
    Broken(
        "a free record reads as absent",
        "S9",
        answering("read", lambda _, y: y if y and y.state is not State.FREE else None),
    ),
    Broken(
        "a gone record reads as absent",
        "S9",
        answering("read", lambda _, y: y if y and y.state is not State.GONE else None),
    ),
    Broken("a scan ends after its first page", "S10", answering("scan", lambda _, y: y[:100])),
    Broken(
        "a scan repeats the last of each page",
        "S10",
        answering("scan", lambda _, y: [*y[:100], *y[99:]] if len(y) > 100 else y),
    ),
    Broken("a scan ends after 1000 records", "S10", answering("scan", lambda _, y: y[:1000]), on_socket=False),
    Broken("a scan counts places", "S10", faulty.scanning_by_places, on_socket=False),
    Broken("a scan goes by the time of writing", "S10", faulty.scanning_by_times, on_socket=False),
    Broken(
        "a scan takes wildcards", "S10", faulty.scanning(lambda o, prefix: fnmatch.fnmatchcase(o.key, f"{prefix}*"))
    ),
    Broken(
        "a scan takes per cent and underscore",
        "S10",
        faulty.scanning(lambda o, prefix: fnmatch.fnmatchcase(o.key, f"{prefix}*".replace("%", "*").replace("_", "?"))),
    ),
    Broken("a scan folds case", "S10", faulty.scanning(lambda o, prefix: o.key.lower().startswith(prefix.lower()))),
    Broken(
        "a scan leaves tombstones out", "S10", faulty.scanning(lambda o, prefix: o.held and o.key.startswith(prefix))
    ),
    Broken(
        "a scan ends below the last character",
        "S10",
        faulty.scanning(lambda o, prefix: prefix <= o.key < f"{prefix}\uffff"),
    ),
    Broken(
        "a scan leaves the prefix itself out",
        "S10",
        faulty.scanning(lambda o, prefix: o.key.startswith(prefix) and o.key != prefix),
    ),
    # ---- exactness
    Broken("empty data is stored as none", "S11", writing(STEPS, lambda _, __, n: replace(n, data=n.data or None))),
    Broken(
        "data is stored as text",
        "S11",
        writing(STEPS, lambda _, __, n: replace(n, data=n.data and n.data.decode(errors="replace").encode()[:65536])),
    ),
    Broken("data is cut at 32 KiB", "S11", writing(STEPS, lambda _, __, n: replace(n, data=n.data and n.data[:32768]))),
    Broken(
        "truth is stored as a number",
        "S11",
        writing(
            STEPS,
            lambda _, __, n: replace(
                n, attributes=tuple((k, int(v) if isinstance(v, bool) else v) for k, v in n.attributes)
            ),
        ),
    ),
    Broken(
        "integers are stored as floats",
        "S11",
        writing(
            STEPS,
            lambda _, __, n: replace(
                n,
                attributes=tuple(
                    (k, max(-(2**63) + 1, min(2**63 - 1, int(float(v)))) if type(v) is int else v)
                    for k, v in n.attributes
                ),
            ),
        ),
    ),
    Broken(
        "tokens are written with 14 digits",
        "S11",
        writing(
            "claim",
            lambda _, __, n: (
                replace(n, fencing_token=int(float(f"{n.fencing_token:.14g}"))) if n.fencing_token < 2**52 else n
            ),
        ),
    ),
    Broken(
        "leases are stored in seconds",
        "S11",
        writing(STEPS, lambda _, __, n: replace(n, lease_ms=n.lease_ms and max(1, n.lease_ms // 1000) * 1000)),
    ),
    Broken(
        "a session is not stored",
        "S11",
        writing(STEPS, lambda _, __, n: replace(n, session=None)),
    ),
    Broken(
        "a replace keeps the beat that stood there",
        "S11",
        writing("replace", lambda o, _, n: replace(n, beat=n.beat or (o.beat if o else None))),
    ),
    Broken("the stamp is not stored", "S11", writing(STEPS, lambda _, __, n: replace(n, stamp=None))),
    Broken(
        "a replace merges the attributes",
        "S11",
        writing(
            "replace",
            lambda o, _, n: replace(
                n,
                attributes=tuple(
                    sorted(({**dict(o.attributes), **dict(n.attributes)} if o else dict(n.attributes)).items())
                ),
            ),
        ),
    ),
    # ---- keys
    Broken("keys are folded to lower case", "S12", faulty.keyed(str.lower)),
    Broken("keys are normalised", "S12", faulty.keyed(lambda key: unicodedata.normalize("NFC", key))),
    Broken("keys are trimmed", "S12", faulty.keyed(str.strip)),
    Broken("keys are cut at 255 characters", "S12", faulty.keyed(lambda key: key[:255])),
    Broken("keys are cleaned as paths", "S12", faulty.keyed(lambda key: key.replace("//", "/"))),
    Broken("keys lose what is not ASCII", "S12", faulty.keyed(lambda key: key.encode("ascii", "replace").decode())),
)

"""The steps of a world by table: each distinct step of a client is computed once, by the shipped machine, and looked up from then on.

A client's form is a client in canonical shape, its RVNs named in order; a world is a tuple of numbers: budgets, the store's form and the
names of its RVNs, and of each client the same. That the machine treats RVNs as opaque, and time and tokens as relative, makes it possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from proof.explore import canonical, store_model, world
from proof.explore.canonical import Store
from proof.explore.store_model import Op
from proof.explore.world import NEW_RVN, Client, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Names", "Step", "Table", "World"]

Names: TypeAlias = tuple[int, ...]
Part: TypeAlias = tuple[int, Names]
World: TypeAlias = tuple[Any, ...]  # (ticks, faults, breaks, store's part, clients' parts, operator's part or None)

_NEW = 1 << 20  # the name of a fresh RVN until the world is renamed


class Step(NamedTuple):
    """One step of a world. *violation* names the invariant that it breaks."""

    label: str
    world: World
    notes: tuple[str, ...]
    violation: str | None


class _Local(NamedTuple):
    label: str
    cost: int
    form: int
    sources: Names  # of each RVN of the new form: the place in the old one, or _NEW
    notes: tuple[str, ...]
    violation: str | None
    lost: int | None
    released: int | None
    closed: int | None
    died: bool


class _Joint(NamedTuple):
    form: int
    sources: Names  # places in the client's RVNs, then in the store's (from _NEW on)
    store: int
    store_sources: Names
    rise: int
    notes: tuple[str, ...]
    violation: str | None


def _renaming(used: tuple[Names, ...]) -> tuple[Names, ...]:
    """Return the same names, counted by first occurrence."""
    names: dict[int, int] = {}
    return tuple(tuple([names.setdefault(name, len(names)) for name in each]) for each in used)


class Table:
    """The steps of all worlds under the same rules."""

    def __init__(self, rules: Rules, *, symmetric: bool = True) -> None:
        self.rules = rules
        self.symmetric = symmetric
        self.clients: list[Client] = []
        self.stores: list[Store] = []
        self.transitions: set[str] = set()
        self._client_ids: dict[Client, int] = {}
        self._store_ids: dict[Store, int] = {}
        self._locals: dict[int, tuple[_Local, ...]] = {}
        self._ops: dict[int, tuple[Op, ...]] = {}
        self._joints: dict[tuple[int, Op, int, Names], _Joint | None] = {}
        self._olders: dict[int, Part] = {}
        self._older_stores: dict[int, int] = {}
        self._moving: dict[int, tuple[int, tuple[str, ...]] | None] = {}  # the operator's form, by the store's
        self._rebased: dict[tuple[int, int], Part] = {}
        self._swept: dict[tuple[int, bool, Names], Part] = {}
        self._orphans: list[bool] = []  # of each form: has it anything that a change of the store may make dead
        self._renamings: dict[tuple[Names, ...], tuple[Names, ...]] = {}
        self._valid: dict[int, tuple[int, ...]] = {}
        self._unowned: dict[tuple[int, int, Names], bool] = {}

    # -- forms

    def form(self, client: Client) -> tuple[int, tuple[str, ...]]:
        """Return the number of *client*'s form, and its RVNs in the form's order."""
        client = canonical.tidied(client)
        names = canonical.rvns_in(client)
        client = canonical.renamed(client, {name: f"#{place}" for place, name in enumerate(names)})
        number = self._client_ids.setdefault(client, len(self.clients))
        if number == len(self.clients):
            self.clients.append(client)
            self._orphans.append(bool(client.ghosts or client.abandoned))
        return number, names

    def _store_form(self, store: Store) -> tuple[int, tuple[str, ...]]:
        names = canonical.rvns_in(store)
        store = canonical.renamed(store, {name: f"#{place}" for place, name in enumerate(names)})
        number = self._store_ids.setdefault(store, len(self.stores))
        if number == len(self.stores):
            self.stores.append(store)
        return number, names

    def start(self) -> World:
        """Return the world in which nobody has begun."""
        rules = self.rules
        parts = tuple((self.form(world.newcomer(rules, number))[0], ()) for number in range(len(rules.leases)))
        store, _ = self._store_form(Store())
        return self._named((rules.ticks, rules.faults, rules.breaks), (store, ()), parts, ())

    def _named(
        self, budget: tuple[int, int, int], store: Part, parts: tuple[Part, ...], operator: Part | tuple[()]
    ) -> World:
        """Return the world with its clients in order and its RVNs renamed by first occurrence."""
        if self.symmetric:
            parts = tuple(sorted(parts))
        used = (store[1], operator[1] if operator else (), *[part[1] for part in parts])
        renamed = self._renamings.get(used)
        if renamed is None:
            renamed = self._renamings[used] = _renaming(used)
        if operator:
            operator = (operator[0], renamed[1])
        named = tuple([(part[0], names) for part, names in zip(parts, renamed[2:], strict=True)])
        return (*budget, (store[0], renamed[0]), named, operator)

    # -- steps

    def steps(self, here: World) -> Iterator[Step]:
        """Yield each step that can be taken *here*."""
        ticks, faults, breaks, store, parts, operator = here
        for index, part in enumerate(parts):
            for local in self.locals(part[0]):
                if local.cost <= faults:
                    yield self._by_client(here, index, local)
            yield from self._by_store(here, index, part)
        if operator:
            yield from self._by_store(here, -1, operator)
        if breaks and not operator:
            if store[0] not in self._moving:
                moving = store_model.operator_move(self.stores[store[0]], self.rules)
                self._moving[store[0]] = None if moving is None else self.form(moving)
            form = self._moving[store[0]]
            if form is not None:
                number, names = form
                sources = tuple(_NEW if name == NEW_RVN else store[1][int(name[1:])] for name in names)
                yield Step(
                    "operator.break" if self.rules.late is None else "operator.list",
                    self._named((ticks, faults, breaks - 1), store, parts, (number, sources)),
                    (),
                    None,
                )
        if ticks and not any(world.knows_of_absence(self.clients[part[0]]) for part in parts):
            aged = tuple([self._older(part) for part in parts])
            after = self._named((ticks - 1, faults, breaks), self._older_store(store), aged, operator)
            yield Step("tick", after, (), None)

    def locals(self, form: int) -> tuple[_Local, ...]:
        """Return what a client of this *form* can do without the store."""
        known = self._locals.get(form)
        if known is None:
            known = self._locals[form] = tuple(
                self._local(move) for move in world.moves(self.clients[form], self.rules)
            )
        return known

    def _local(self, move: world.Move) -> _Local:
        if move.transition:
            self.transitions.add(move.transition)
        form, names = self.form(move.client)
        sources = tuple(_NEW if name == NEW_RVN else int(name[1:]) for name in names)
        return _Local(
            move.label,
            move.cost,
            form,
            sources,
            move.notes,
            move.violation,
            move.lost,
            move.released,
            move.closed,
            move.died,
        )

    def _by_client(self, here: World, index: int, local: _Local) -> Step:
        ticks, faults, breaks, store, parts, operator = here
        names = parts[index][1]
        if local.died:
            store = (self._store_form(canonical.orphaned(self.stores[store[0]]))[0], store[1])
        part = self._sweep(
            (local.form, tuple([names[source] if source != _NEW else _NEW for source in local.sources])), store
        )
        after = self._named(
            (ticks, faults - local.cost, breaks), store, (*parts[:index], part, *parts[index + 1 :]), operator
        )
        violation = local.violation or self._claims(store, part, local) or self._broken_by(after)
        return Step(f"{index}:{local.label}", after, local.notes, violation)

    def _by_store(self, here: World, index: int, part: Part) -> Iterator[Step]:
        ticks, faults, breaks, store, parts, operator = here
        known = self._ops.get(part[0])
        if known is None:
            known = self._ops[part[0]] = tuple(store_model.ops(self.clients[part[0]], self.rules))
        for op in known:
            if op.cost > faults:
                continue
            joint = self._joint(part, op, store)
            if joint is None:
                continue
            both = (*part[1], *store[1])
            new = (joint.form, tuple([both[source] for source in joint.sources]))
            standing = (joint.store, tuple([both[source] for source in joint.store_sources]))
            if joint.store == store[0] and standing[1] == store[1] and not joint.rise:
                others, brk = parts, operator
            else:
                others = tuple([self._follow(each, joint.rise, standing) for each in parts])
                brk = () if not operator else self._follow(operator, joint.rise, standing)
            new = self._sweep(new, standing)
            if index >= 0:
                others = (*others[:index], new, *others[index + 1 :])
            else:
                brk = new if self.clients[new[0]].ghosts else ()
            after = self._named((ticks, faults - op.cost, breaks), standing, others, brk)
            yield Step(f"{index}:{op.label}", after, joint.notes, joint.violation or self._broken_by(after))

    def _joint(self, part: Part, op: Op, store: Part) -> _Joint | None:
        places = tuple([part[1].index(name) if name in part[1] else -1 for name in store[1]])
        key = (part[0], op, store[0], places)
        if key in self._joints:
            return self._joints[key]
        size = len(part[1])
        client = self.clients[part[0]]
        known = {f"#{at}": f"#{place}" if place >= 0 else f"#{size + at}" for at, place in enumerate(places)}
        landed = store_model.land(client, op, canonical.renamed(self.stores[store[0]], known), self.rules)
        joint = None
        if landed is not None:
            form, names = self.form(landed.client)
            number, store_names = self._store_form(landed.store)
            sources, store_sources = (tuple(int(name[1:]) for name in each) for each in (names, store_names))
            joint = _Joint(form, sources, number, store_sources, landed.rise, landed.notes, landed.violation)
        self._joints[key] = joint
        return joint

    def _follow(self, part: Part, rise: int, store: Part) -> Part:
        """Return the part of a client when another's write was applied."""
        if rise:
            known = self._rebased.get((part[0], rise))
            if known is None:
                known = self._rebased[part[0], rise] = self._image(
                    canonical.cleared(canonical.rebased(self.clients[part[0]], rise))
                )
            part = (known[0], tuple([part[1][source] for source in known[1]]))
        return self._sweep(part, store)

    def _sweep(self, part: Part, store: Part) -> Part:
        if not self._orphans[part[0]]:
            return part
        places = tuple([part[1].index(name) if name in part[1] else -1 for name in store[1]])
        # Of the store only the versions matter, and its token always has the same name.
        key = (part[0], not store[1], places)
        known = self._swept.get(key)
        if known is None:
            client = self.clients[part[0]]
            known = self._swept[key] = self._image(canonical.swept(client, self._seen_from(places, store[0])))
        return known[0], tuple([part[1][source] for source in known[1]])

    def _seen_from(self, places: Names, store: int) -> Store:
        return canonical.renamed(
            self.stores[store], {f"#{at}": f"#{place}" if place >= 0 else "#other" for at, place in enumerate(places)}
        )

    def _older(self, part: Part) -> Part:
        known = self._olders.get(part[0])
        if known is None:
            later = world.restaged(canonical.aged(self.clients[part[0]], 1, self.rules.span_ns))
            later = world.without_late(later)
            known = self._olders[part[0]] = self._image(later)
        return known[0], tuple([part[1][source] for source in known[1]])

    def _older_store(self, store: Part) -> Part:
        known = self._older_stores.get(store[0])
        if known is None:
            known, _ = self._store_form(canonical.aged(self.stores[store[0]], 1, self.rules.span_ns))
            self._older_stores[store[0]] = known
        return known, store[1]

    def _image(self, client: Client) -> Part:
        """Return the form of a *client* that was made from a form, and of each of its RVNs the place in that form."""
        form, names = self.form(client)
        return form, tuple(int(name[1:]) for name in names)

    def describe(self, here: World) -> str:
        """Return *here* for people: each client's attempts, and the record."""
        _, _, _, store, parts, operator = here
        words = []
        for form, names in (*parts, operator) if operator else parts:
            client = canonical.renamed(
                self.clients[form], {f"#{place}": f"#{name}" for place, name in enumerate(names)}
            )
            words.append(world.in_words(client))
        record = canonical.renamed(
            self.stores[store[0]], {f"#{place}": f"#{name}" for place, name in enumerate(store[1])}
        ).record
        standing = "-" if record is None else f"{record.state} {record.rvn} token {record.fencing_token}"
        return f"record: {standing} | " + " | ".join(words)

    # -- invariants

    def _claims(self, store: Part, part: Part, local: _Local) -> str | None:
        """Check what a step has claimed about the store: that the lock is lost, was given back, or that nothing can come any more."""
        record = self.stores[store[0]].record
        if local.lost is not None and (record is None or record.fencing_token <= local.lost):
            return "I6: a loss was told, and nobody else was granted"
        if (
            local.released is not None
            and record is not None
            and world.held_record(record)
            and record.fencing_token == local.released
        ):
            return "S4: a release was reported done, and the record is still held"
        if local.closed is not None:
            client = self.clients[part[0]]
            fail_closed = client.timings is not None and client.timings.lease_ms is None
            for ghost in client.ghosts:
                known = ghost.copy or world.rvn_of(ghost.request) in client.abandoned
                lands = not world.expects_absence(client, ghost.request) or record is None
                if ghost.number == local.closed and lands and (fail_closed or not known):
                    return "I5: an attempt is over, and a write of it may still be applied"
        return None

    def _broken_by(self, here: World) -> str | None:
        """I1: whoever is valid holds the token of the record, and is one. Without a lease: no hold that nobody would give back."""
        _, _, _, store, parts, _ = here
        standing = self.stores[store[0]]
        record = standing.record
        valid: list[int] = []
        for part in parts:
            tokens = self._valid.get(part[0])
            if tokens is None:
                tokens = self._valid[part[0]] = canonical.valid_tokens(self.clients[part[0]])
            valid += tokens
        if valid and not (self.rules.frees_now and self.rules.breaks):
            if len(valid) > 1:
                return "I1: two leases are valid"
            known = record is not None and (
                (record.fencing_token == valid[0] and world.held_record(record))
                or (canonical.broken(standing) and valid[0] == canonical.TOKEN - 1)
            )
            if not known:
                return "I1: a lease is valid, and the record is another's"
        if record is not None and record.lease_ms is None and world.held_record(record):
            return self._phantom(store, parts)
        return None

    def _phantom(self, store: Part, parts: tuple[Part, ...]) -> str | None:
        for form, names in parts:
            places = tuple([names.index(name) if name in names else -1 for name in store[1]])
            key = (form, store[0], places)
            known = self._unowned.get(key)
            if known is None:
                known = self._unowned[key] = canonical.unowned(self.clients[form], self._seen_from(places, store[0]))
            if known:
                return "L3: the key is held for ever, and nobody would give it back"
        return None

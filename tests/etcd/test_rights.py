"""A user with rights to one prefix, TLS with a certificate of the client's own, and what ``dlock doctor`` says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dlock_conformance.servers import free_port

from dlock_core import connect
from dlock_core.errors import StoreSetupError, StoreUnavailableError
from dlock_core.store import Grade
from dlock_etcd import AsyncEtcdStore, EtcdStore
from dlock_etcd._schema import Request
from tests.certificates import make_certificates
from tests.cli.operator_support import Command
from tests.etcd.support import TIMEOUT_S, administer, any_claim, coded, released, renewed, until
from tests.scripted import ScriptedServer

PASSWORD = "in-no-message"
TOKEN_S = 1
MANY = 20


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """Start a server that asks for users, and forgets their tokens soon; return its address."""
    server = ScriptedServer("etcd.sh", DLOCK_ETCD_ARGS=f"--auth-token-ttl={TOKEN_S}")
    address = f"127.0.0.1:{server.port}"
    for name, role in (("root", "root"), ("locker", "locks"), ("stranger", None)):
        administer(address, "auth/user/add", name=name, password=PASSWORD)
        if role is not None:
            administer(address, "auth/role/add", name=role)
            administer(address, "auth/user/grant", user=name, role=role)
    # What `dlock doctor --policy` says: one prefix, to read and to write.
    permission = {"permType": "READWRITE", "key": coded("app/"), "range_end": coded("app0")}
    administer(address, "auth/role/grant", name="locks", perm=permission)
    administer(address, "auth/enable")
    yield address
    server.stop()


def test_user_with_rights_to_the_prefix_can_do_everything(guarded: str, key: str) -> None:
    """Claims, renewals alone and in a batch, reads, scans, waits and releases; the token is asked for again when it has ended."""
    store = EtcdStore(f"etcd://locker:{PASSWORD}@{guarded}/app")
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    store._link._token = "ended.1"
    record = store.replace(renewed(record), timeout_s=TIMEOUT_S).record
    assert record is not None

    assert store.replace_many([renewed(record)], timeout_s=TIMEOUT_S)[0].record.owner == "tests"
    found = store.read(key, timeout_s=TIMEOUT_S)
    assert found is not None
    store.wait(found, ticket="t", timeout_s=0.1)
    assert list(store.scan(key, timeout_s=TIMEOUT_S)) == [found]
    assert store.release(released(found), timeout_s=TIMEOUT_S).applied
    assert store.guarantees().grade is Grade.B
    store.close()


def test_asyncio_user_too(guarded: str, key: str) -> None:
    """The same way."""

    async def claim() -> bool:
        store = AsyncEtcdStore(f"etcd://locker:{PASSWORD}@{guarded}/app")
        reply = await store.claim(any_claim(key), timeout_s=TIMEOUT_S)
        await store.close()
        return reply.applied

    assert asyncio.run(claim())


def counted(store: EtcdStore | AsyncEtcdStore, logins: list[object]) -> None:
    """Note in *logins* each request for a token."""
    call = store._link._call

    def noted(request: Request, *others: Any) -> Any:
        if request.method.path.endswith("Authenticate"):
            logins.append(request)
        return call(request, *others)

    store._link._call = noted


def test_requests_of_one_client_whose_token_has_ended_log_in_once(guarded: str, key: str) -> None:
    """Each login costs the server a tenth of a second: two hundred that waited kept it busy until all locks were lost."""
    store, logins = EtcdStore(f"etcd://locker:{PASSWORD}@{guarded}/app"), list[object]()
    store.read(key, timeout_s=TIMEOUT_S)
    counted(store, logins)
    store._link._token = "ended.1"

    with ThreadPoolExecutor(MANY) as pool:
        done = list(pool.map(lambda _: store.read(key, timeout_s=TIMEOUT_S), range(MANY)))

    assert done == [None] * MANY
    assert len(logins) == 1
    store.close()


def test_tasks_of_one_client_whose_token_has_ended_log_in_once(guarded: str, key: str) -> None:
    """The same way."""

    async def read() -> int:
        store, logins = AsyncEtcdStore(f"etcd://locker:{PASSWORD}@{guarded}/app"), list[object]()
        counted(store, logins)
        await asyncio.gather(*(store.read(key, timeout_s=TIMEOUT_S) for _ in range(MANY)))
        await store.close()
        return len(logins)

    assert asyncio.run(read()) == 1


def test_login_that_outlasts_its_request_serves_the_next(guarded: str, key: str) -> None:
    """A busy server checks a password for longer than a request has: logins that ended with their requests were all in vain."""
    store, logins, answers = EtcdStore(f"etcd://locker:{PASSWORD}@{guarded}/app"), list[object](), threading.Event()
    call = store._link._call
    store._link._call = lambda *request: (answers.wait(TIMEOUT_S), call(*request))[1]
    counted(store, logins)

    with pytest.raises(StoreUnavailableError, match="has not checked the password in time"):
        store.claim(any_claim(key), timeout_s=0.1)
    answers.set()

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
    assert len(logins) == 1
    store.close()


def test_login_that_outlasts_its_task_serves_the_next(guarded: str, key: str) -> None:
    """The same way."""

    async def claim() -> int:
        store, logins, answers = (
            AsyncEtcdStore(f"etcd://locker:{PASSWORD}@{guarded}/app"),
            list[object](),
            asyncio.Event(),
        )
        call = store._link._call

        async def slow(*request: Any) -> Any:
            await asyncio.wait_for(answers.wait(), TIMEOUT_S)
            return await call(*request)

        store._link._call = slow
        counted(store, logins)
        with pytest.raises(StoreUnavailableError, match="has not checked the password in time"):
            await store.claim(any_claim(key), timeout_s=0.1)
        answers.set()
        assert (await store.claim(any_claim(key), timeout_s=TIMEOUT_S)).applied
        await store.close()
        return len(logins)

    assert asyncio.run(claim()) == 1


def test_login_without_an_answer_delays_another_for_half_its_time(guarded: str, key: str) -> None:
    """A renewal must not lose its lock to the long time-out of a request before it."""
    store, hangs = EtcdStore(f"etcd://locker:{PASSWORD}@{guarded}/app"), threading.Event()
    call = store._link._call

    def first_hangs(*request: Any) -> Any:
        if not hangs.is_set():
            hangs.set()
            until(lambda: store._link._token != "")
        return call(*request)

    store._link._call = first_hangs
    hanging = threading.Thread(target=lambda: store.read(key, timeout_s=TIMEOUT_S))
    hanging.start()
    assert hangs.wait(TIMEOUT_S)

    assert store.claim(any_claim(key), timeout_s=2.0).applied
    hanging.join()
    store.close()


@pytest.mark.parametrize(
    ("login", "root", "told"),
    [
        ("", "app", "asks for a user"),
        ("locker:wrong@", "app", "check user and password"),
        (f"locker:{PASSWORD}@", "elsewhere", "lacks a right"),
        (f"stranger:{PASSWORD}@", "app", "lacks a right"),
    ],
)
def test_user_without_rights_is_told(guarded: str, key: str, login: str, root: str, told: str) -> None:
    """It is an error of the set-up, which no second try mends, and nothing was written."""
    store = EtcdStore(f"etcd://{login}{guarded}/{root}")

    with pytest.raises(StoreSetupError, match=told) as caught:
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)

    store.close()
    assert PASSWORD not in str(caught.value)


def test_password_for_a_server_without_users_is_told(address: str, key: str) -> None:
    """Better than to go on without it."""
    store = EtcdStore(f"etcd://locker:{PASSWORD}@{address}/app")

    with pytest.raises(StoreSetupError, match="authentication is not enabled"):
        store.read(key, timeout_s=TIMEOUT_S)

    store.close()


def test_doctor_examines_a_server(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the grade, and the rights that a user needs."""
    command = Command(capsys)
    url = f"etcd://{address}/app"

    told = command.json("doctor", "--url", url)
    _, policy, _ = command("doctor", "--policy", "--url", url)

    assert "etcd" in str(told)
    assert "--auto-compaction-retention" in str(told)
    assert "--prefix=true readwrite 'app/'" in policy


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an authority and one certificate, for the server and for its clients."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_tls_verifies_both_sides(certificates: Path, key: str) -> None:
    """A client without the authority, without its certificate, or with another key, is refused and told why; with all the lock is had."""
    port = free_port()
    files = f"--cert-file={certificates}/server.pem --key-file={certificates}/server.key"
    server = ScriptedServer(
        "etcd.sh",
        DLOCK_ETCD_URL=f"https://127.0.0.1:{port}",
        DLOCK_ETCD_ARGS=f"{files} --client-cert-auth --trusted-ca-file={certificates}/ca.pem",
    )
    own = f"tls_cert={certificates}/server.pem&tls_key={certificates}/server.key"
    url = f"etcd://localhost:{port}/app?tls=true"
    try:
        with connect(f"{url}&tls_ca={certificates}/ca.pem&{own}") as client, client.lock(key) as lease:
            assert lease.is_valid
        url = f"etcd://127.0.0.1:{port}/app?tls=true"  # one address: of two, the error would be that of the last
        trusting = f"{url}&tls_ca={certificates}/ca.pem"
        for lacking, missing in (
            (url, "authority in tls_ca"),
            (trusting, "wants a certificate of the client"),
            (f"{trusting}&{own.replace('server.key', 'ca.key')}", "the key is the certificate's"),
        ):
            store = EtcdStore(lacking)
            with pytest.raises(StoreUnavailableError, match=missing):
                store.claim(any_claim(key), timeout_s=2)
            store.close()
    finally:
        server.stop()


def test_certificates_that_are_renewed_are_used_by_the_next_connection(tmp_path: Path, key: str) -> None:
    """A program lives longer than its certificate: the first connection after that was refused for ever, and all locks were lost."""
    port, folder = free_port(), make_certificates(tmp_path)
    files = f"--cert-file={folder}/server.pem --key-file={folder}/server.key"
    server = ScriptedServer(
        "etcd.sh",
        DLOCK_ETCD_URL=f"https://127.0.0.1:{port}",
        DLOCK_ETCD_ARGS=f"{files} --client-cert-auth --trusted-ca-file={folder}/ca.pem",
    )
    own = f"tls_ca={folder}/ca.pem&tls_cert={folder}/server.pem&tls_key={folder}/server.key"
    store = EtcdStore(f"etcd://127.0.0.1:{port}/app?tls=true&{own}")
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None

    make_certificates(folder)
    server.crash()
    server.start()

    def is_renewed() -> bool:
        try:
            return store.replace(renewed(record), timeout_s=2.0).applied
        except StoreUnavailableError:
            return False  # it is coming back

    try:
        until(is_renewed)
    finally:
        store.close()
        server.stop()

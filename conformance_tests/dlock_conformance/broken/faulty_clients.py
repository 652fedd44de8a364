"""Clients that forget with a new connection what they set up with the first, that mix what is asked at once, or that make up answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from dlock_conformance.broken.faulty_links import BrokenLinks
from dlock_conformance.wire.errors import NoReplyError
from dlock_conformance.wire.links import AsyncLinks, Links, ReplyTimeoutError
from dlock_core.record import LockRecord
from dlock_core.store import mark_withdrawn

__all__ = ["LINKS_OF_CLIENTS"]


class Reconnecting(Links):
    """Notes whether a connection was lost; from then on *changed* makes others of what is asked and answered."""

    was_lost = False

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`Links.ask`."""
        stands = None
        if self.was_lost and verb in ("replace", "release"):
            stands = super().ask("read", request.record.key, "", timeout_s)
        asked = changed(self, request, stands) if self.was_lost else request
        try:
            return super().ask(verb, asked, more, timeout_s)
        except NoReplyError as error:
            self.was_lost = self.was_lost or not isinstance(error, ReplyTimeoutError)
            raise


class AsyncReconnecting(AsyncLinks):
    """The same for tasks."""

    was_lost = False

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`AsyncLinks.ask`."""
        stands = None
        if self.was_lost and verb in ("replace", "release"):
            stands = await super().ask("read", request.record.key, "", timeout_s)
        asked = changed(self, request, stands) if self.was_lost else request
        try:
            return await super().ask(verb, asked, more, timeout_s)
        except NoReplyError as error:
            self.was_lost = self.was_lost or not isinstance(error, ReplyTimeoutError)
            raise


def changed(client: Reconnecting | AsyncReconnecting, request: Any, stands: LockRecord | None) -> Any:
    """Return what *client* sends in place of *request*, where *stands* is what a change finds."""
    return getattr(client, "sends", lambda request, _: request)(request, stands)


class _OlderScript:
    """The script that compares the token is not loaded again."""

    @staticmethod
    def sends(request: Any, stands: LockRecord | None) -> Any:
        """Expect what stands, where the RVN is right."""
        if stands is None or stands.rvn != request.expected.rvn:
            return request
        return request._replace(expected=stands.version)


class _OtherLetters:
    """The character set of a connection is that of the server until it is named."""

    @staticmethod
    def sends(request: Any, _: LockRecord | None) -> Any:
        """Send for what the set lacks a question mark."""
        if isinstance(request, str):
            return in_latin(request)
        if not hasattr(request, "record"):
            return request
        return request._replace(record=replace(request.record, key=in_latin(request.record.key)))


class _OtherOwners:
    """The same, in a column of text."""

    @staticmethod
    def sends(request: Any, _: LockRecord | None) -> Any:
        """Write the owner without what the set lacks."""
        if not hasattr(request, "record"):
            return request
        return request._replace(record=replace(request.record, owner=in_latin(request.record.owner)))


def in_latin(text: str) -> str:
    """Return *text* as it comes through a connection of another character set."""
    return text.encode("latin-1", "replace").decode("latin-1")


class OlderScript(_OlderScript, Reconnecting):
    """For threads."""


class AsyncOlderScript(_OlderScript, AsyncReconnecting):
    """For tasks."""


class OtherLetters(_OtherLetters, Reconnecting):
    """For threads."""


class AsyncOtherLetters(_OtherLetters, AsyncReconnecting):
    """For tasks."""


class OtherOwners(_OtherOwners, Reconnecting):
    """For threads."""


class AsyncOtherOwners(_OtherOwners, AsyncReconnecting):
    """For tasks."""


class AsyncWithdrawing(AsyncLinks):
    """Closes the connection of a claim that is cancelled, and says that the claim is withdrawn."""

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`AsyncLinks.ask`."""
        try:
            return await super().ask(verb, request, more, timeout_s)
        except asyncio.CancelledError as interrupt:
            if verb == "claim_when_free":
                mark_withdrawn(interrupt, request)
            raise


class OneBuffer(Links):
    """Makes each batch ready in the one buffer of the client."""

    buffer: Any = None

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`Links.ask`."""
        if verb in ("replace_many", "claim_many"):
            self.buffer = request
            time.sleep(0)  # here another thread may come between
            request = self.buffer
        return super().ask(verb, request, more, timeout_s)


class AsyncOneBuffer(AsyncLinks):
    """The same for tasks."""

    buffer: Any = None

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`AsyncLinks.ask`."""
        if verb in ("replace_many", "claim_many"):
            self.buffer = request
            await asyncio.sleep(0)  # here another task may come between
            request = self.buffer
        return await super().ask(verb, request, more, timeout_s)


def for_many(verb: str, request: Any, timeout_s: float) -> float:
    """Return a time-out that counts for each four of a batch."""
    return timeout_s * max(1.0, len(request) / 4) if verb in ("replace_many", "claim_many") else timeout_s


class MoreForMany(Links):
    """Gives a large batch more time than its caller."""

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`Links.ask`."""
        return super().ask(verb, request, more, for_many(verb, request, timeout_s))


class AsyncMoreForMany(AsyncLinks):
    """The same for tasks."""

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`AsyncLinks.ask`."""
        return await super().ask(verb, request, more, for_many(verb, request, timeout_s))


def reckoned(known: dict[str, tuple[LockRecord, int, float]], key: str, error: NoReplyError) -> tuple[LockRecord, int]:
    """Return what was known of *key*, as old as it would be by now.

    Raises: NoReplyError: nothing was.
    """
    if key not in known:
        raise error
    record, age_ms, at = known[key]
    return record, age_ms + int((time.monotonic() - at) * 1000)


class Reckoning(Links):
    """Reckons the age of a record where no answer comes."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self.known: dict[str, tuple[LockRecord, int, float]] = {}

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`Links.ask`."""
        try:
            came = super().ask(verb, request, more, timeout_s)
        except NoReplyError as error:
            if verb != "read_age":
                raise
            return reckoned(self.known, request, error)
        if verb == "read_age" and came is not None:
            self.known[request] = (*came, time.monotonic())
        return came


class AsyncReckoning(AsyncLinks):
    """The same for tasks."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self.known: dict[str, tuple[LockRecord, int, float]] = {}

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`AsyncLinks.ask`."""
        try:
            came = await super().ask(verb, request, more, timeout_s)
        except NoReplyError as error:
            if verb != "read_age":
                raise
            return reckoned(self.known, request, error)
        if verb == "read_age" and came is not None:
            self.known[request] = (*came, time.monotonic())
        return came


LINKS_OF_CLIENTS: tuple[BrokenLinks, ...] = (
    BrokenLinks("a renewal by a new connection compares the RVN only", "S5", OlderScript, AsyncOlderScript),
    BrokenLinks("a release by a new connection compares the RVN only", "S6", OlderScript, AsyncOlderScript),
    BrokenLinks("a new connection writes owners in other letters", "S11", OtherOwners, AsyncOtherOwners),
    BrokenLinks("a new connection has keys of other letters", "S12", OtherLetters, AsyncOtherLetters),
    BrokenLinks("a claim that was cancelled on its way is said to be withdrawn", "W3", None, AsyncWithdrawing),
    BrokenLinks("batches at once are made ready in one buffer", "S15", OneBuffer, AsyncOneBuffer),
    BrokenLinks("a batch has its time-out for each four", "S13", MoreForMany, AsyncMoreForMany),
    BrokenLinks("an age is reckoned where no answer comes", "S9", Reckoning, AsyncReckoning),
)

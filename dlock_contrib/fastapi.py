"""FastAPI: a lock as a dependency of a path operation.

locks = Locks("redis://host/0")
app = FastAPI(lifespan=locks.lifespan)

@app.post("/orders/{order}/pay")
async def pay(order: str, lease: Annotated[AsyncLease, locks.held("order/{order}")]): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from fastapi import Depends
from fastapi.requests import HTTPConnection

from dlock_contrib import starlette
from dlock_core import AsyncLease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dlock_core import AcquireKeywords

__all__ = ["Locks"]


class Locks(starlette.Locks):
    """As :class:`dlock_contrib.starlette.Locks`, and a dependency."""

    def held(self, key: str, **options: Unpack[AcquireKeywords]) -> Any:
        """Return a dependency: the operation runs while it holds *key*, with the names of path parameters in braces, and gets the lease.

        The lock is released before the answer is sent, so a lock that was lost meanwhile is an error of the request.

        Raises: ConfigurationError: no lock can have the key or the options.
        """
        self.check(key, **options)

        async def dependency(request: HTTPConnection) -> AsyncIterator[AsyncLease]:
            async with self.hold(request, key, **options) as lease:
                yield lease

        return Depends(dependency, scope="function")

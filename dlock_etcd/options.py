"""The options of the etcd store, and how they are written as a URL: ``etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/ROOT?tls=true``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

from dlock_core.errors import ConfigurationError
from dlock_core.kit import EndpointOptions

__all__ = ["EtcdStoreOptions", "Files", "files_of"]

Files: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]


class EtcdStoreOptions(EndpointOptions):
    """Where the records are: all keys begin with *root*. The *endpoints* are members of one cluster, the first that can be reached is used.

    *tls* encrypts, and verifies the server against the system's authorities or those in the file *tls_ca*; *tls_cert* and *tls_key* are the
    client's own.
    """

    scheme = "etcd"
    port = 2379

    @classmethod
    def root_of(cls, value: str) -> str:
        """Return *value*, with which keys can begin."""
        if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,200}", value) or value != value.strip("/"):
            raise ValueError("not 1 to 200 characters, without a '/' at either end")
        return value


def files_of(options: EtcdStoreOptions) -> Files | None:
    """Return what the files of *options* say now: the authority, the client's key and its certificate; None without TLS.

    Raises: ConfigurationError: a file cannot be read.
    """
    if not options.tls:
        return None
    try:
        ca, key, cert = (
            Path(path).read_bytes() if path else None for path in (options.tls_ca, options.tls_key, options.tls_cert)
        )
    except OSError as error:
        raise ConfigurationError(f"a file for TLS cannot be read: {error}") from error
    return ca, key, cert

"""Certificates for servers with TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def make_certificates(folder: Path, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2) -> Path:
    """Make an authority and one certificate of it, for a server with *names* and for its clients; return *folder*."""
    # Python 3.13 and newer ask for all that RFC 5280 does.
    extensions = f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n"
    (folder / "extensions").write_text(extensions, encoding="utf-8")
    for line in (
        f"req -x509 {_KEY} -days 2 -subj /CN=authority -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.pem",
        f"req -new {_KEY} -subj /CN=localhost -keyout server.key -out server.csr",
        f"x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} -extfile extensions -out server.pem",
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
    return folder

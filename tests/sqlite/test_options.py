"""The URL and the options of the SQLite store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dlock_core.backend import backend_for
from dlock_core.errors import (
    ConfigurationError,
)
from dlock_sqlite import SqliteOptions, SqliteStore, backend


class TestOptions:
    """From a URL to options."""

    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("sqlite:///relative.db", "relative.db"),
            ("sqlite:///some/folder/relative.db", "some/folder/relative.db"),
            ("sqlite:////abs/path.db", "/abs/path.db"),
            ("sqlite:////abs/with%20space%3F%23%25.db", "/abs/with space?#%.db"),
            ("sqlite:///caf%C3%A9.db", "café.db"),
            ("sqlite:///%FF.db", os.fsdecode(b"\xff.db")),
            ("SQLITE:///a.db?synchronous=extra", "a.db"),
        ],
    )
    def test_the_path_of_a_url_is_decoded(self, url: str, path: str) -> None:
        """Three slashes are relative, four absolute, and percent signs give any byte."""
        assert SqliteOptions.from_url(url).path == path

    def test_the_url_wins_over_settings(self) -> None:
        """A setting of the file yields to the query."""
        assert SqliteOptions.from_url("sqlite:///a?synchronous=normal", synchronous="extra").synchronous == "normal"
        assert SqliteOptions.from_url("sqlite:///a", synchronous="extra").synchronous == "extra"
        assert SqliteOptions.from_url("sqlite:///a").synchronous == "full"

    @pytest.mark.parametrize(
        ("url", "settings", "words"),
        [
            ("sqlite://", {}, "no file"),
            ("sqlite:///", {}, "no file"),
            ("sqlite:///:memory:", {}, "memory://"),
            ("sqlite:///%3Amemory%3A", {}, "memory://"),
            ("sqlite://relative.db", {}, "sqlite:///relative.db"),
            ("sqlite://host/path.db", {}, "has a host"),
            ("sqlite://user:secret@host/path.db", {}, "has a host"),
            ("sqlite:///a%00b.db", {}, "zero byte"),
            ("sqlite:///folder/", {}, "directory"),
            ("sqlite:///a.db?mode=ro", {}, "unknown query key 'mode'"),
            ("sqlite:///a.db?synchronous=off", {}, "'off' is not one of full, extra, normal"),
            ("sqlite:///a.db?synchronous=full&synchronous=extra", {}, "twice"),
            ("sqlite:///a.db#b", {}, "fragment"),
            ("sqlite:///a.db", {"table": "x"}, "no setting 'table'"),
            ("sqlite:///a.db", {"path": "x"}, "no setting 'path'"),
            ("sqlite:///a.db", {"synchronous": 2}, "2 is not one of"),
        ],
    )
    def test_what_is_wrong_is_said(self, url: str, settings: dict[str, Any], words: str) -> None:
        """Every mistake is a ConfigurationError that shows no secret."""
        with pytest.raises(ConfigurationError) as caught:
            SqliteOptions.from_url(url, **settings)

        assert words in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_the_store_refuses_what_the_url_refuses(self) -> None:
        """Who makes the store without a URL gets the same errors."""
        for path in ("", ":memory:", "a\0b", "folder/"):
            with pytest.raises(ConfigurationError):
                SqliteStore(path)
        with pytest.raises(ConfigurationError, match="not one of"):
            SqliteStore("a.db", synchronous="off")  # type: ignore[arg-type]

    def test_the_scheme_opens_the_store(self, path: Path) -> None:
        """The entry point leads here, and threads serve asyncio."""
        found: object = backend_for("sqlite:///a.db")
        options = SqliteOptions.from_url(f"sqlite:///{path}?synchronous=extra")

        store = backend.open(options)

        assert found is backend
        assert isinstance(store, SqliteStore)
        assert (store.path, store.synchronous) == (str(path), "extra")
        assert backend.aopen(options) is None
        store.close()

"""Reads schemas from a registry with Confluent's interface, by subject or by id.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from lockkit.errors import TableError
from lockkit.table.errors import DamagedFile, RefusedOption, UnsupportedTable

TIMEOUT_S = 10.0
SCHEMA_BYTES_MAX = 4 << 20
KINDS = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """The registry below `base`, a URL without credentials."""

    base: str
    user: str = field(default="", repr=False)
    """`name:password`; "" for none."""

    def by_id(self, number: int) -> str:
        """The Avro schema of this id, as JSON. Raises `TableError`."""
        return self._schema(f"{self.base}/schemas/ids/{number}")

    def at(self, url: str) -> str:
        """The Avro schema at `<base>/subjects/<subject>/versions/latest`. Raises `TableError`."""
        return self._schema(without_user(url)[0])

    def _schema(self, url: str) -> str:
        request = urllib.request.Request(url, headers={"Accept": KINDS})
        if self.user:
            token = base64.b64encode(self.user.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                body = answer.read(SCHEMA_BYTES_MAX)
            said: Any = json.loads(body)
            schema = said["schema"]
        except urllib.error.HTTPError as error:
            raise TableError("the schema registry", f"answered {error.code} for {url}") from None
        except (OSError, urllib.error.URLError) as error:
            why = getattr(error, "reason", error)
            raise TableError("the schema registry", f"at {url} cannot be reached: {why}") from None
        except (ValueError, LookupError, TypeError):
            raise DamagedFile(url, "is not a schema of a schema registry") from None
        if said.get("schemaType", "AVRO") != "AVRO" or not isinstance(schema, str):
            raise UnsupportedTable(url, "is a schema of another kind than Avro")
        return schema


def open_registry(url: str, *, base: str = "", user: str = "") -> SchemaRegistry:
    """The registry of a subject's address. `base` and `user` override those in `url`."""
    bare, inside = without_user(url)
    if urlsplit(bare).scheme not in ("http", "https"):
        raise RefusedOption(
            "schema.registry.url", "is not the http(s) address of a schema registry",
            value=bare[:200],
        )  # fmt: skip
    own, its = without_user(base.partition(",")[0]) if base else ("", "")
    return SchemaRegistry((own or bare.partition("/subjects/")[0]).rstrip("/"),
                          user or its or inside)  # fmt: skip


def without_user(url: str) -> tuple[str, str]:
    """The address without credentials, and the credentials as `name:password`."""
    parts = urlsplit(url)
    inside, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(inside)

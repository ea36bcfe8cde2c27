"""Google's and Azure's dialects with a check of roles before each operation."""

from __future__ import annotations

import re
from typing import Any

from lockkit.lab.server.azure import Azure
from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect
from lockkit.lab.server.gcs import Gcs
from lockkit.lab.server.gcs_xml import GcsXml
from lockkit.lab.server.objects import Object, Objects
from lockkit.lab.server.profiles import ServerProfile
from lockkit.lab.server.roles import Roles

_RIGHTS = {"GET": "read", "HEAD": "read", "PUT": "write", "DELETE": "delete"}


class _RefusedXml(GcsXml):
    def answer(self, call: DialectRequest) -> Reply:
        raise DialectError(501, "notImplemented", "this server does not judge the XML API by roles")


class RoleCheckedGcs(Gcs):
    """Each operation checks its permission where it reads or writes the object."""

    def __init__(self, objects: Objects, profile: ServerProfile, roles: Roles) -> None:
        super().__init__(objects, profile)
        self.roles = roles
        self._xml = _RefusedXml(objects, profile)

    def refuse(self, call: DialectRequest, refusal: DialectError, deed: RequestEffect) -> Reply:
        """403 for a missing object if the caller may not list: GCS does not reveal its absence."""
        if refusal.status == 404 and deed.key:
            try:
                self.roles.google("storage.objects.list", deed.bucket)
            except DialectError as denied:
                refusal, deed.answer = denied, denied.answer
        return super().refuse(call, refusal, deed)

    def _route(self, call: DialectRequest, deed: RequestEffect, path: str) -> Reply:
        if not re.match(r"/b/[^/]+/o", path):
            self.roles.google(f"storage.buckets ({call.method})", path[3:])  # no role here has it
        return super()._route(call, deed, path)

    def _list(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        self.roles.google("storage.objects.list", deed.bucket)
        return super()._list(call, deed)

    def _wanted(self, call: DialectRequest, deed: RequestEffect) -> Object:
        self.roles.google("storage.objects.get", deed.bucket, deed.key)
        return super()._wanted(call, deed)

    def _bytes_of(self, bucket: str, key: str, generation: str | None) -> tuple[Object, bytes]:
        self.roles.google("storage.objects.get", bucket, key)
        return super()._bytes_of(bucket, key, generation)

    def _write(
        self, deed: RequestEffect, query: Any, body: bytes, meta: dict[str, Any],
        etag: str | None = None,
    ) -> Object:  # fmt: skip
        self.roles.google("storage.objects.create", deed.bucket, deed.key)
        if self.objects.current(deed.bucket, deed.key) is not None:  # to replace one deletes it
            self.roles.google("storage.objects.delete", deed.bucket, deed.key)
        return super()._write(deed, query, body, meta, etag)

    def _rename(self, call: DialectRequest, deed: RequestEffect, named: re.Match[str]) -> Reply:
        raise DialectError(501, "notImplemented", "this server does not judge a move by roles")

    def _patch(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        self.roles.google("storage.objects.update", deed.bucket, deed.key)
        return super()._patch(call, deed)

    def _delete(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        self.roles.google("storage.objects.delete", deed.bucket, deed.key)
        return super()._delete(call, deed)


class RoleCheckedAzure(Azure):
    """A role covers whole containers. A lease is a write, as on Azure."""

    def __init__(self, objects: Objects, profile: ServerProfile, roles: Roles) -> None:
        super().__init__(objects, profile)
        self.roles = roles

    def _route(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        comp, right = call.query.get("comp", ""), _RIGHTS.get(call.method, call.method)
        if not deed.key and (call.method, comp) != ("GET", "list"):
            right = f"on a container: {right}"  # a role with data actions on blobs has none of them
        if comp == "tags":
            right = f"tags/{right}"
        self.roles.azure(right, deed.bucket, deed.key)
        if "x-ms-copy-source" in call.headers:
            raise DialectError(501, "NotImplemented", "this server does not judge a copy by roles")
        return super()._route(call, deed)

"""Google's XML API, which object_store uses: S3's requests, with generations as conditions."""

from __future__ import annotations

from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect, number
from lockkit.lab.server.gcs_resource import hash_header
from lockkit.lab.server.gcs_uploads import described
from lockkit.lab.server.markup import plain
from lockkit.lab.server.objects import Check, Object
from lockkit.lab.server.profiles import throttle
from lockkit.lab.server.s3 import S3
from lockkit.lab.server.s3_conditions import failed_condition

_RENAMED = ("copy-source", "meta-", "metadata-directive")


class GcsXml(S3):
    def answer(self, call: DialectRequest) -> Reply:
        headers = dict(call.headers)
        for name, value in call.headers.items():
            plain = name.removeprefix("x-goog-")
            if plain != name and plain.startswith(_RENAMED):
                headers[f"x-amz-{plain}"] = value
        if "x-goog-copy-source-generation" in headers:
            headers["x-amz-copy-source"] += f"?versionId={headers['x-goog-copy-source-generation']}"
        query = dict(call.query)
        if "generation" in query:
            query["versionId"] = query.pop("generation")
        reply = super().answer(
            DialectRequest(
                call.method, call.path, query, headers, call.body, call.host, call.target, call.id
            )
        )
        reply.headers = {
            name.replace("x-amz-meta-", "x-goog-meta-"): value
            for name, value in reply.headers.items()
        }
        return reply

    def refuse(self, call: DialectRequest, refusal: DialectError, deed: RequestEffect) -> Reply:
        reply = super().refuse(call, refusal, deed)
        detail = f"<Details>{plain(refusal.message)}</Details></Error>"  # Google's SDK reads it
        reply.body = reply.body.replace(b"</Error>", detail.encode())
        return reply

    def request_ids(self, call: DialectRequest) -> dict[str, str]:
        return {"x-guploader-uploadid": call.id}

    def _put_part(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        sums = described(call, {}, call.body)
        reply = super()._put_part(call, deed)
        if "crc32c" in sums:
            reply.headers["x-goog-hash"] = f"crc32c={sums['crc32c']}"
        return reply

    def _write(
        self,
        call: DialectRequest,
        deed: RequestEffect,
        body: bytes,
        meta: dict[str, str],
        etag: str | None = None,
    ) -> Object:
        return super()._write(call, deed, body, {**meta, **described(call, {}, body)}, etag)

    def _check(self, call: DialectRequest, deed: RequestEffect) -> Check:
        wanted = call.headers.get("x-goog-if-generation-match")
        if wanted is not None:
            deed.condition = "if-absent" if wanted == "0" else f"if-version {wanted}"

        def check(before: Object | None) -> None:
            deed.before = self._version(before)
            throttle(self.objects, self.profile, deed.bucket, deed.key)
            if wanted is not None and self.profile.put_conditions:
                now = 0 if before is None else before.id
                if number(wanted, "x-goog-if-generation-match") != now:
                    raise failed_condition()

        return check

    def _delete_check(self, call: DialectRequest, deed: RequestEffect) -> Check:
        judge = self._check(call, deed)

        def check(before: Object | None) -> None:
            if before is None:
                raise DialectError(404, "NoSuchKey", "The specified key does not exist.", "missing")
            judge(before)

        return check

    def _version(self, object: Object | None) -> str:
        return "" if object is None else str(object.id)

    def _tags(self, object: Object) -> dict[str, str]:
        return {
            "x-goog-generation": str(object.id),
            "x-goog-metageneration": str(object.metageneration),
            "x-goog-stored-content-length": str(object.size),
            "x-goog-hash": hash_header(object),
        }

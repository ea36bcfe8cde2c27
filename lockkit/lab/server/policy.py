"""AWS policy documents, judged as S3 judges them: a denial first, then a grant, else a 403.

It supports what the documents in datasets/policies need, and refuses any other document, so that
nothing is silently ignored. Roles of Google Cloud and Azure are read here, and judged in `roles`.
https://docs.aws.amazon.com/service-authorization/ names actions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockkit.lab.server.call import DialectError, DialectRequest, key_of
from lockkit.lab.server.roles import Grant, Roles, azure_grants, google_grants

ARN = "arn:aws:s3:::"
CONTEXT = {"s3:prefix", "s3:if-match", "s3:if-none-match", "s3:objectcreationoperation"}
KNOWN = {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}
ON_OBJECTS = {
    ("GET", ""): "s3:GetObject", ("HEAD", ""): "s3:GetObject", ("PUT", ""): "s3:PutObject",
    ("GET", "partNumber"): "s3:GetObject", ("HEAD", "partNumber"): "s3:GetObject",
    ("GET", "versionId"): "s3:GetObjectVersion", ("HEAD", "versionId"): "s3:GetObjectVersion",
    ("DELETE", ""): "s3:DeleteObject", ("DELETE", "versionId"): "s3:DeleteObjectVersion",
    ("POST", "uploads"): "s3:PutObject", ("POST", "uploadId"): "s3:PutObject",
    ("PUT", "uploadId"): "s3:PutObject", ("DELETE", "uploadId"): "s3:AbortMultipartUpload",
    ("GET", "uploadId"): "s3:ListMultipartUploadParts", ("GET", "tagging"): "s3:GetObjectTagging",
    ("PUT", "tagging"): "s3:PutObjectTagging", ("DELETE", "tagging"): "s3:DeleteObjectTagging",
}  # fmt: skip
ON_BUCKETS = {
    ("GET", ""): "s3:ListBucket", ("HEAD", ""): "s3:ListBucket",
    ("GET", "versions"): "s3:ListBucketVersions",
    ("GET", "uploads"): "s3:ListBucketMultipartUploads",
    ("GET", "location"): "s3:GetBucketLocation", ("GET", "versioning"): "s3:GetBucketVersioning",
    ("PUT", "versioning"): "s3:PutBucketVersioning", ("PUT", ""): "s3:CreateBucket",
    ("DELETE", ""): "s3:DeleteBucket",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    denies: bool
    actions: re.Pattern[str]
    resources: re.Pattern[str]
    conditions: tuple[tuple[str, str, re.Pattern[str]], ...]
    """Operator, key and values; all of them must hold."""

    def applies(self, action: str, resource: str, context: Mapping[str, str]) -> bool:
        return bool(
            self.actions.fullmatch(action.lower())
            and self.resources.fullmatch(resource)
            and all(_holds(operator, values, context.get(key))
                    for operator, key, values in self.conditions)
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Several documents together. If none of them grants anything, everything that none denies is
    granted: they are then a bucket's policies, for an identity with every right.
    """

    statements: tuple[Statement, ...]
    google: Roles | None = None
    azure: Roles | None = None

    def check(self, call: DialectRequest, bucket: str, key: str) -> None:
        """403 unless every action that this request needs is allowed."""
        for action, resource in _needed(call, bucket, key):
            self._check(action, resource, _context(call))

    def missing(self, bucket: str) -> None:
        """403 for a missing object if the caller may not list: S3 does not reveal its absence."""
        self._check("s3:ListBucket", ARN + bucket, {})

    def _check(self, action: str, resource: str, context: Mapping[str, str]) -> None:
        found = [each for each in self.statements if each.applies(action, resource, context)]
        granting = any(not each.denies for each in self.statements)
        if any(each.denies for each in found) or (granting and not found):
            raise DialectError(
                403, "AccessDenied",
                f"User is not authorized to perform: {action} on resource: {resource}",
            )  # fmt: skip


def read_policy(documents: Iterable[str]) -> AccessPolicy:
    """Raises `ValueError`, which names what is not supported."""
    statements: list[Statement] = []
    google: list[Grant] = []
    azure: list[Grant] = []
    for text in documents:
        said = json.loads(text)
        match said:
            case {"roles": dict(), "bindings": list()}:
                google += google_grants(said)
                continue
            case {"DataActions": list(), "AssignableScopes": list()}:
                azure += azure_grants(said)
                continue
        listed = said.get("Statement") if isinstance(said, dict) else None
        if not isinstance(listed, list):
            raise ValueError("it is neither an AWS policy nor Google bindings nor an Azure role")
        statements += map(_statement, listed)
    return AccessPolicy(tuple(statements), Roles.of(google), Roles.of(azure))


def _statement(said: Any) -> Statement:
    if not isinstance(said, dict) or not {"Effect", "Action", "Resource"} <= said.keys() <= KNOWN:
        raise ValueError(f"a statement has Effect, Action, Resource, Condition, not {said!r:.200}")
    if said["Effect"] not in ("Allow", "Deny") or said.get("Principal", "*") != "*":
        raise ValueError(f"Effect is Allow or Deny, and Principal is *: {said!r:.200}")
    conditions = []
    for operator, wanted in said.get("Condition", {}).items():
        if operator not in ("StringLike", "StringEquals", "Bool", "Null"):
            raise ValueError(f"the condition {operator} cannot be judged here")
        for key, values in wanted.items():
            if key.lower() not in CONTEXT:
                raise ValueError(f"the condition key {key} cannot be judged here")
            like = operator == "StringLike"
            conditions.append((operator, key.lower(), _pattern(values, wild=like)))
    lower = [each.lower() for each in _listed(said["Action"])]
    return Statement(
        said["Effect"] == "Deny", _pattern(lower), _pattern(said["Resource"]), tuple(conditions)
    )


def _holds(operator: str, values: re.Pattern[str], found: str | None) -> bool:
    if operator == "Null":
        return values.fullmatch("true" if found is None else "false") is not None
    return found is not None and values.fullmatch(found) is not None


def _listed(said: str | Sequence[str]) -> list[str]:
    return [said] if isinstance(said, str) else list(said)


def _pattern(said: str | Sequence[str], *, wild: bool = True) -> re.Pattern[str]:
    escaped = [re.escape(each) for each in _listed(said)]
    if wild:
        escaped = [each.replace(r"\*", ".*").replace(r"\?", ".") for each in escaped]
    return re.compile("|".join(escaped), re.DOTALL)


def _needed(call: DialectRequest, bucket: str, key: str) -> list[tuple[str, str]]:
    """Actions and resources; a request that cannot be judged is a 501."""
    if not bucket:
        return [("s3:ListAllMyBuckets", "*")]
    subresources = ("tagging", "versionId", "uploadId", "uploads", "partNumber") if key else (
        "versions", "uploads", "location", "versioning", "delete")  # fmt: skip
    aspect = next((each for each in subresources if each in call.query), "")
    action = (ON_OBJECTS if key else ON_BUCKETS).get((call.method, aspect))
    if action is None:
        text = f"{call.method} ?{aspect} cannot be judged by a policy here"
        raise DialectError(501, "NotImplemented", text)
    if aspect == "tagging" and "versionId" in call.query:
        action = action.replace("Object", "ObjectVersion")
    needed = [(action, f"{ARN}{bucket}/{key}" if key else ARN + bucket)]
    if "x-amz-tagging" in call.headers:
        needed.append(("s3:PutObjectTagging", needed[0][1]))
    if source := call.headers.get("x-amz-copy-source"):
        path, _, version = source.lstrip("/").partition("?versionId=")
        read = "s3:GetObjectVersion" if version else "s3:GetObject"
        needed.append((read, ARN + key_of(path)))
    return needed


def _context(call: DialectRequest) -> dict[str, str]:
    """The condition keys that this request has."""
    found = {f"s3:{name}": call.headers[name]
             for name in ("if-match", "if-none-match") if name in call.headers}  # fmt: skip
    if "prefix" in call.query:
        found["s3:prefix"] = call.query["prefix"]
    creates = call.method == "PUT" and "uploadId" not in call.query
    creates |= call.method == "POST" and "uploadId" in call.query
    return found | {"s3:objectcreationoperation": "true" if creates else "false"}

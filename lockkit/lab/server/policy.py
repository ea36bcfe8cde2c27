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
VERSIONS = ("2012-10-17", "2008-10-17")
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
        try:
            said = json.loads(text, object_pairs_hook=_unique)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        try:
            match said:
                case {"roles": dict(), "bindings": list()}:
                    google += google_grants(said)
                case {"DataActions": list(), "AssignableScopes": list()}:
                    azure += azure_grants(said)
                case _:
                    statements += _statements(said)
        except (AttributeError, TypeError):  # a role with a number in place of a text
            raise ValueError("a part of it has the wrong type") from None
    return AccessPolicy(tuple(statements), Roles.of(google), Roles.of(azure))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name occurs twice among {[name for name, _ in pairs]!r:.200}")
    return found


def _statements(said: Any) -> list[Statement]:
    if not isinstance(said, dict) or "Statement" not in said:
        raise ValueError("it is neither an AWS policy nor Google bindings nor an Azure role")
    if unknown := said.keys() - {"Version", "Id", "Statement"}:
        raise ValueError(f"an AWS policy has no {min(unknown)!r:.200}")
    if said.get("Version", VERSIONS[0]) not in VERSIONS:
        raise ValueError(f"Version is {' or '.join(VERSIONS)}, not {said['Version']!r:.200}")
    if not isinstance(said["Statement"], list) or not said["Statement"]:
        raise ValueError("Statement must be a list here, with at least one statement")
    return [_statement(each) for each in said["Statement"]]


def _statement(said: Any) -> Statement:
    if not isinstance(said, dict) or not {"Effect", "Action", "Resource"} <= said.keys() <= KNOWN:
        raise ValueError(f"a statement has Effect, Action, Resource, Condition, not {said!r:.200}")
    if said["Effect"] not in ("Allow", "Deny") or said.get("Principal", "*") != "*":
        raise ValueError(f"Effect is Allow or Deny, and Principal is *: {said!r:.200}")
    conditions = []
    for operator, wanted in _object(said.get("Condition", {})).items():
        if operator not in ("StringLike", "StringEquals", "Bool", "Null"):
            raise ValueError(f"the condition {operator} cannot be judged here")
        for key, values in _object(wanted).items():
            if key.lower() not in CONTEXT:
                raise ValueError(f"the condition key {key} cannot be judged here")
            like = operator == "StringLike"
            conditions.append((operator, key.lower(), _pattern(_values(values), wild=like)))
    named = _listed(said["Action"], r"\*$|[\w-]+:.", "service:Action or *")
    actions = _pattern([each.lower() for each in named])
    resources = _pattern(
        _listed(said["Resource"], r"\*$|arn:.", "arn:aws:s3:::bucket/key or *, without a variable")
    )
    return Statement(said["Effect"] == "Deny", actions, resources, tuple(conditions))


def _object(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise ValueError(f"a condition is an object of objects, not {said!r:.200}")
    return said


def _holds(operator: str, values: re.Pattern[str], found: str | None) -> bool:
    if operator == "Null":
        return values.fullmatch("true" if found is None else "false") is not None
    return found is not None and values.fullmatch(found) is not None


def _listed(said: Any, form: str, wanted: str) -> list[str]:
    """One text or several, each of this form; a `${variable}` cannot be judged."""
    values = said if isinstance(said, list) else [said]
    for each in values or [said]:
        if not isinstance(each, str) or "${" in each or not re.match(form, each):
            raise ValueError(f"{each!r:.200} cannot be judged here; write {wanted}")
    return values


def _values(said: Any) -> list[str]:
    """The values of a condition, which may be numbers and booleans."""
    values = said if isinstance(said, list) else [said]
    texts = [json.dumps(each) if isinstance(each, int | float) else each for each in values]
    return _listed(texts, "", "a text, a number or a boolean, without a variable")


def _pattern(values: Sequence[str], *, wild: bool = True) -> re.Pattern[str]:
    escaped = [re.escape(each) for each in values]
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

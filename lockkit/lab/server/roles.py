"""Roles of Google Cloud and Azure, as datasets/policies has them, judged as those providers do.

Google's document holds custom roles and their bindings, Azure's a custom role. What no role grants
is refused, and so is a document that says more than can be judged here.
https://cloud.google.com/storage/docs/access-control/iam-permissions and
https://learn.microsoft.com/azure/role-based-access-control/permissions/storage name the rights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockkit.lab.server.call import DialectError

STARTS_WITH = re.compile(
    r"resource\.name\.startsWith\('projects/_/buckets/([^/']+)/objects/([^']*)'\)"
)
AZURE = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/"
CONTAINER = re.compile(r"/blobServices/default/containers/([^/]+)")


@dataclass(frozen=True, slots=True)
class Grant:
    """What is allowed, and where: in one bucket below a prefix. No bucket means all of them."""

    permissions: frozenset[str]
    bucket: str = ""
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Roles:
    grants: tuple[Grant, ...]

    @classmethod
    def of(cls, grants: list[Grant]) -> Roles | None:
        """None if no document of this provider was given: then nothing is judged."""
        return cls(tuple(grants)) if grants else None

    def allow(self, permission: str, bucket: str, key: str = "") -> bool:
        return any(
            permission in each.permissions
            and each.bucket in ("", bucket)
            and key.startswith(each.prefix)
            for each in self.grants
        )

    def google(self, permission: str, bucket: str, key: str = "") -> None:
        """403 unless the roles allow it. The resource has no key if the right is a bucket's."""
        if not self.allow(permission, bucket, key):
            raise DialectError(
                403, "forbidden",
                f"The caller does not have {permission} access to the Google Cloud Storage "
                f"{'object' if key else 'bucket'}. Permission '{permission}' denied on resource "
                "(or it may not exist).",
            )  # fmt: skip

    def azure(self, right: str, bucket: str, key: str = "") -> None:
        """403 unless the roles allow it. Azure's answer does not name the missing right."""
        if not self.allow(AZURE + right, bucket, key):
            raise DialectError(
                403, "AuthorizationPermissionMismatch",
                "This request is not authorized to perform this operation using this permission.",
            )  # fmt: skip


def google_grants(document: Mapping[str, Any]) -> list[Grant]:
    """Raises `ValueError` for what cannot be judged here."""
    grants = []
    for binding in document["bindings"]:
        name = str(binding.get("role", "")).rpartition("/")[2]
        if name not in document["roles"]:
            raise ValueError(f"the role {name!r} of a binding is not in this document")
        permissions = frozenset(document["roles"][name])
        if (condition := binding.get("condition")) is None:
            grants.append(Grant(permissions))
            continue
        found = STARTS_WITH.fullmatch(str(condition.get("expression")))
        if found is None:
            raise ValueError(f"the condition {condition!r:.200} cannot be judged here")
        grants.append(Grant(permissions, found[1], found[2]))
    if not grants:
        raise ValueError("the document grants nothing")
    return grants


def azure_grants(document: Mapping[str, Any]) -> list[Grant]:
    """Raises `ValueError` for what cannot be judged here."""
    for name in ("Actions", "NotActions", "NotDataActions", "Condition"):
        if document.get(name):
            raise ValueError(f"a role with {name} cannot be judged here")
    permissions, grants = frozenset(document["DataActions"]), []
    if wild := [each for each in permissions if "*" in each]:
        raise ValueError(f"the action {wild[0]} has a wildcard and cannot be judged here")
    for scope in document["AssignableScopes"]:
        found = CONTAINER.search(scope)
        if found is None:
            raise ValueError(f"the scope {scope!r:.200} is not a container")
        grants.append(Grant(permissions, found[1]))
    if not grants:
        raise ValueError("the document grants nothing")
    return grants

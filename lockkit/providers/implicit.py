"""The key that Hudi's "implicit" providers derive from a table's path, so none is configured.

Hudi's HashID (org.apache.hudi.common.util.hash): XXH64 of the path's UTF-8 bytes, written as 16
upper-case hex digits. The seed is a Java int, sign-extended to long.
"""

from __future__ import annotations

import re

from lockkit.errors import StoreError

SEED = 0xFFFF_FFFF_DABA_DABA


def key_of_base_path(base_path: str) -> str:
    """As Hudi derives it: `s3a://` becomes `s3://`; the rest, with a last slash, is unchanged."""
    try:
        from xxhash import xxh64_hexdigest
    except ModuleNotFoundError:
        raise StoreError(
            f"the key of the lock is a hash of {base_path!r:.200}, and the Python package 'xxhash' "
            "is not installed",
            cure="pip install xxhash, or configure the key by a provider that is not implicit",
        ) from None
    path = re.sub("^s3a://", "s3://", base_path, flags=re.IGNORECASE)
    return xxh64_hexdigest(path.encode(), SEED).upper()

"""The error for a file operation that failed, with its cure. Loaded only to raise one."""

from __future__ import annotations

import errno

from lockkit.errors import StoreError

CURES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "check who owns the directory",
    errno.EPERM: "check who owns the directory",
    errno.ENOENT: "no directory can be made there (as under /proc); choose another",
    errno.EROFS: "it is mounted read-only",
    errno.EBADF: "NFS passes no directory locks on; use a local disk",
    errno.EISDIR: "a directory has that file's name; find out what made it, and move it away",
    errno.ENXIO: "find out what made it, and move it away",
    errno.ELOOP: "a link there leads to itself; find out what made it, and remove it",
    errno.ENOTDIR: "a file is in the place of a directory; choose another key or URL",
    errno.EEXIST: "a file is in the place of a directory; choose another key",
    errno.ENAMETOOLONG: "a name has at most 255 bytes; choose a shorter one",
}


def fault(url: str, doing: str, error: OSError) -> StoreError:
    cure = CURES.get(error.errno or 0, "check the directory")
    return StoreError(f"{url}: cannot {doing}: {error.strerror}; {cure}")

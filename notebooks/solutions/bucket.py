"""Notebook 11: a hash of the key alone, and one that is the same in every process."""

import zlib


def bucket(key, sizes):
    return zlib.crc32(key.encode()) % len(sizes)

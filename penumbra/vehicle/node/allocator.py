"""Reuse of memory from frame to frame."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
LARGEST = 32 << 20  # bytes: the maximum that glibc accepts


def keep_memory() -> None:
    """Make malloc keep freed images instead of returning them to the system.

    Otherwise every new page of every array costs a page fault: half of the node's time, measured
    at 1242x375. Has no effect without glibc.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, 8 * LARGEST)

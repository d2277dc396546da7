"""Keep the memory of one frame for the next."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST = 32 << 20  # bytes: the most that glibc takes


def keep_memory() -> None:
    """Tell malloc not to give freed images back to the system, only to ask for them again.

    Every new page of every array costs a page fault: measured at 1242x375, that was half of the
    node's time. Elsewhere than with glibc nothing is done.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, 8 * LARGEST)

"""A private ROS domain, so that two runs on one machine never receive each other's messages."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from penumbra.errors import PenumbraError

# 0 is the default; above 101 the ports of DDS fall into Linux's ephemeral range.
DOMAINS = range(1, 102)


@contextlib.contextmanager
def private_domain() -> Iterator[int]:
    """Reserve a domain and set it for this process and its children, on this machine only.

    A reservation is a socket in Linux's abstract namespace. It has the scope of DDS over loopback
    (the network namespace), and ends with the process, even if that is killed.
    """
    with socket.socket(socket.AF_UNIX) as reservation:
        domain = reserve(reservation)
        settings = {
            "ROS_DOMAIN_ID": str(domain),
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            "ROS_LOCALHOST_ONLY": None,  # the older switch; it would take precedence
            "ROS_STATIC_PEERS": None,
        }
        before = {name: os.environ.get(name) for name in settings}
        set_variables(settings)
        try:
            yield domain
        finally:
            set_variables(before)


def reserve(reservation: socket.socket) -> int:
    """Bind `reservation` to the name of a free domain, starting from one that the PID selects."""
    for attempt in range(len(DOMAINS)):
        domain = DOMAINS[(os.getpid() + attempt) % len(DOMAINS)]
        try:
            reservation.bind(f"\0penumbra-ros-domain-{domain}")
        except OSError:  # taken
            continue
        return domain
    raise PenumbraError(
        f"all ROS domains from {DOMAINS[0]} to {DOMAINS[-1]} are in use by other tests or demos on"
        " this machine: wait until they end"
    )


def set_variables(settings: dict[str, str | None]) -> None:
    """Set environment variables; None removes one."""
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

"""Whether an address belongs to this machine: a socket can't be bound to any other."""

import socket

from posthouse.rules.public_address import Address


def is_local(address: Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as bound:
            bound.bind((str(address), 0))
    except OSError:
        return False
    return True

"""Who may call each operation, as the operations declare it."""

from typing import Final

from posthouse.entrypoints.http.app import OPERATIONS

NEEDED: Final = {name: access.role for name, access in OPERATIONS.items() if access.role is not None}
SCOPES: Final = {name: access.scopes for name, access in OPERATIONS.items() if access.scopes}
PUBLIC: Final = frozenset(name for name, access in OPERATIONS.items() if access.is_public)
FOR_OPERATORS: Final = frozenset(name for name, access in OPERATIONS.items() if access.is_for_operators)
# For programs, whatever their credential.
FOR_PROGRAMS: Final = frozenset(SCOPES) - frozenset(NEEDED)
OWN: Final = frozenset(name for name, access in OPERATIONS.items() if access.is_own)

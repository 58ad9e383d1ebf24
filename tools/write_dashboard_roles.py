"""Writes dashboard/src/rules/roles.ts from the declared operations: who may call each."""

import sys
from pathlib import Path
from typing import Final

from posthouse.entrypoints.http.app import OPERATIONS
from posthouse.rules.credential import Role

FILE: Final = Path(__file__).parents[1] / "dashboard" / "src" / "rules" / "roles.ts"


def written() -> str:
    """The module's text."""
    declared = sorted(OPERATIONS.items())
    operations = "".join(f"  {name}: '{access.role}',\n" for name, access in declared if access.role is not None)
    roles = ", ".join(f"'{role.value}'" for role in (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER))
    own = "".join(f"  '{name}',\n" for name, access in declared if access.is_own)
    for_operators = "\n".join(f"  | '{name}'" for name, access in declared if access.is_for_operators)
    return f"""/** Written by `make dashboard-types` from the operations in src/posthouse/entrypoints/http/routes. */

/** Each role includes the permissions of those before it. */
export const ROLES = [{roles}] as const
export type Role = (typeof ROLES)[number]

/** The least role of each operation. */
export const NEEDED = {{
{operations}}} as const satisfies Record<string, Role>

/** For operators, whatever their role. */
export type OperatorOperation =
{for_operators}
export type Operation = keyof typeof NEEDED | OperatorOperation

/** What concerns only the user: open even without the second factor that an account requires. */
export const OWN: readonly Operation[] = [
{own}]
"""


def main() -> None:
    if "--check" not in sys.argv:
        FILE.write_text(written(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != written():
        sys.exit(f"{FILE.name} is not what the operations declare: run `make dashboard-types`.")


if __name__ == "__main__":
    main()

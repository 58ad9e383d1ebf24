"""dashboard/src/rules/roles.ts, written anew from rules/role.py: who may call each operation."""

import sys
from pathlib import Path
from typing import Final

from posthouse.rules.credential import Role
from posthouse.rules.role import FOR_OPERATORS, NEEDED, OWN

FILE: Final = Path(__file__).parents[1] / "dashboard" / "src" / "rules" / "roles.ts"


def written() -> str:
    """The module's text."""
    operations = "".join(f"  {operation}: '{NEEDED[operation].value}',\n" for operation in sorted(NEEDED))
    roles = ", ".join(f"'{role.value}'" for role in (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER))
    own = "".join(f"  '{operation}',\n" for operation in sorted(OWN))
    for_operators = "\n".join(f"  | '{operation}'" for operation in sorted(FOR_OPERATORS))
    return f"""/** Written by `make dashboard-types` from src/posthouse/rules/role.py. */

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

/** What concerns the user alone: open also without the second factor that an account requires. */
export const OWN: readonly Operation[] = [
{own}]
"""


def main() -> None:
    if "--check" not in sys.argv:
        FILE.write_text(written(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != written():
        sys.exit(f"{FILE.name} is not what rules/role.py says: run `make dashboard-types`.")


if __name__ == "__main__":
    main()

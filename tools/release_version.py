"""Checks that everything is ready for a release, and prints its section of the changelog: `release_version.py 1.0.0`.

Needs nothing but the standard library, because the release workflow runs it.
"""

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
# Where each package, client library and deployment file has its version.
VERSIONS: Final = {
    "pyproject.toml": r'^version = "(.+)"$',
    "sdks/python/src/posthouse_sdk/version.py": r'VERSION: Final = "(.+)"',
    "sdks/typescript/package.json": r'^  "version": "(.+)",$',
    "sdks/typescript/src/version.ts": r'VERSION = "(.+)"',
    "sdks/go/doc.go": r'^const Version = "(.+)"$',
    "sdks/php/src/Client.php": r"VERSION = '(.+)'",
    "sdks/ruby/lib/posthouse/version.rb": r'VERSION = "(.+)"',
    "sdks/java/pom.xml": r"^  <version>(.+)</version>$",
    "sdks/java/src/main/java/example/posthouse/PosthouseClient.java": r'VERSION = "(.+)"',
    "deploy/compose.yaml": r"localhost/posthouse:([0-9a-z.-]+)\}",
    "deploy/kubernetes/kustomization.yaml": r"newTag: (.+)$",
}


def versions() -> dict[str, str]:
    found = {}
    for name, pattern in VERSIONS.items():
        match = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
        found[name] = match[1] if match else "none"
    return found


def changelog_section(changelog: str, version: str) -> str:
    """The text below the version's heading; empty when there is none."""
    match = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return match[1].strip() if match else ""


def main(version: str) -> None:
    wrong = [f"{name} has {found}" for name, found in versions().items() if found != version]
    if wrong:
        sys.exit(f"the version is not {version} everywhere: {'; '.join(wrong)}")
    section = changelog_section((ROOT / "CHANGELOG.md").read_text(), version)
    if not section:
        sys.exit(f"CHANGELOG.md has no section [{version}] with a date: rename [Unreleased]")
    print(section)


if __name__ == "__main__":
    main(sys.argv[1])

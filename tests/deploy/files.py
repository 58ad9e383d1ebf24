"""The files of `deploy/`, as data."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from posthouse.config.settings import section_types, variable

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


def unknown_settings(names: Iterator[str] | Mapping[str, object]) -> list[str]:
    known = {variable(section, name) for section, kind in section_types().items() for name in kind.model_fields}
    return [name for name in names if name.startswith(PREFIX) and not {name, name.removesuffix(FILE_SUFFIX)} & known]


def secret_names(directory: Path) -> set[str]:
    """The files that `make-secrets.sh` writes."""
    subprocess.run([DEPLOY / "make-secrets.sh", directory], check=True)
    return {file.name for file in directory.iterdir()}

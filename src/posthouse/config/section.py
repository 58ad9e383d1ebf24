"""What all sections share: their base class, which settings are secret, and lists written in one variable."""

import json
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.fields import FieldInfo


class Section(BaseModel):
    # Built as a part of Settings alone: building each by itself as well takes twice the time.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


def is_secret(setting: FieldInfo) -> bool:
    """Whether it holds a secret: it is never printed, and can be given as a file that holds it (`…_file`)."""
    return not setting.repr


def _split(given: object) -> object:
    if not isinstance(given, str):
        return given
    if given.lstrip().startswith("["):
        return json.loads(given)
    return [part.strip() for part in given.split(",") if part.strip()]


Texts = Annotated[tuple[str, ...], BeforeValidator(_split)]
Integers = Annotated[tuple[int, ...], BeforeValidator(_split)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_split)]

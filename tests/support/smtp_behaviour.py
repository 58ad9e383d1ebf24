"""The words by which an address says how the SMTP receiver treats it; `smtp_receiver` lists them."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
STARTTLS: Final = ("refused", "broken", "hang", "injected", "half", "untrusted", "othername")

_act_word: Final = re.compile(
    r"([245][0-9]{2}|blocked|throttled|drop|hang|drip|endless|flood|overlong|garbage|twice|lose)"
    r"-(connect|ehlo|helo|mail|rcpt|data|body|dot|quit)"
).fullmatch


@dataclass(frozen=True, slots=True)
class Behaviour:
    acts: Mapping[str, str] = field(default_factory=dict)
    greylists: bool = False
    pipelining: bool = True
    chunking: bool = False
    size_bytes_max: int = SIZE_BYTES_MAX
    delay_seconds: float = 0.0
    data_anyway: bool = False
    starttls: str = ""
    auth: str = ""


def behaviour_of(words: str) -> Behaviour:
    acts: dict[str, str] = {}
    given: dict[str, object] = {}
    for word in filter(None, words.split("--")):
        key, _, value = word.partition("-")
        if act := _act_word(word):
            acts[act[2]] = act[1]
        elif word == "greylist":
            given["greylists"] = True
        elif word == "no-pipelining":
            given["pipelining"] = False
        elif word == "chunking":
            given["chunking"] = True
        elif word == "data-anyway":
            given["data_anyway"] = True
        elif key == "size":
            given["size_bytes_max"] = int(value)
        elif key == "delay":
            given["delay_seconds"] = int(value) / 1000
        elif key == "auth" and value in ("plain", "login", "refused"):
            given["auth"] = value
        elif key == "starttls" and value in ("", *STARTTLS):
            given["starttls"] = value or "sound"
        else:
            raise ValueError(f"unknown behaviour {word!r}")
    return Behaviour(acts=acts, **given)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _behaviour_of_word(word: str) -> Behaviour:
    try:
        return behaviour_of(word)
    except ValueError:
        return Behaviour()


def behaviours_of_address(address: str) -> Iterator[Behaviour]:
    local, _, domain = address.lower().rpartition("@")
    for word in (local.partition("+")[0], domain.partition(".")[0]):
        if "-" in word or word == "greylist":
            yield _behaviour_of_word(word)

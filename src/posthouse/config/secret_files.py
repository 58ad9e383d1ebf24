"""Secrets in separate files: `pepper_file` under `[secrets]` names a file that contains the pepper.

Container engines and systemd pass secrets in this way (/run/secrets, credentials).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from posthouse.config.section import Fault, is_secret
from posthouse.config.settings import section_types

FILE_SUFFIX: Final = "_file"
FILE_BYTES_MAX: Final = 64 * 1024


def with_secrets_read(
    values: Mapping[str, object], where: Callable[[str, str], str], faults: list[Fault]
) -> dict[str, object]:
    """The values of one source, with each `…_file` of a secret replaced by the content of the file."""
    read = dict(values)
    for section, kind in section_types().items():
        given = read.get(section)
        if not isinstance(given, Mapping):
            continue
        found = dict(given)
        for name, field in kind.model_fields.items():
            file_name = name + FILE_SUFFIX
            if not is_secret(field) or file_name not in found:
                continue
            content = _content(found.pop(file_name), is_alone=name not in found)
            found[name] = content
            if isinstance(content, Fault):
                setting = f"{section}.{name}"
                faults.append(Fault(where(section, file_name), f"{setting}{FILE_SUFFIX} {content.text}", setting))
        read[section] = found
    return read


def _content(path: object, *, is_alone: bool) -> str | Fault:
    if not is_alone:
        return Fault("", "is set, and so is the setting itself: remove one of them")
    if not isinstance(path, str) or not path:
        return Fault("", "is not the name of a file")
    try:
        with Path(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        text = raw.decode().strip()
    except OSError as error:
        return Fault("", f"names {path}, which can't be read: {error.strerror}")
    except ValueError:
        return Fault("", f"names {path}, which is not text in UTF-8, or not a path")
    if not text or len(raw) > FILE_BYTES_MAX:
        return Fault("", f"names {path}, which is empty, or longer than {FILE_BYTES_MAX // 1024} KiB")
    return text

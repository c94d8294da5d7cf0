"""Reading the user's own configuration files. Whatever such a file does, the kernel starts and can say what is wrong.

A file that cannot be used is a *fault*: nothing of the configuration is applied then, and no cell runs. Settings in a
file that is not read are worth a *warning*.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_dir, jupyter_config_path

from agently_kernel.config_places import MOST_READ, ConfigPlaces
from agently_kernel.settings import CONFIG_NAME, SECTION, KernelSettings, read_settings

NAMES = (CONFIG_NAME + ".py", CONFIG_NAME + ".json")
BASE_TRAITS = ("debug_just_my_code", "filter_internal_frames", "stop_on_error_timeout", "_execute_sleep",
               "_poll_interval", "_darwin_app_nap")
"""Settings of ipykernel's base class, which it reads itself."""
_MENTION = re.compile(rf"^[^#\n]*\b{SECTION}\b", re.MULTILINE)


def read_config(arguments: Sequence[str]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the user's configuration and, as sentences, what could not be used of it; with faults it is empty.

    Files are ``agently_kernel_config.py`` and ``.json`` in Jupyter's config folders, never in the notebook's folder;
    ``--AgentlyKernel.name=value`` of *arguments* wins over them. Raises nothing.
    """
    config: dict[str, Any] = {}
    faults: list[str] = []
    for path in _files(NAMES):
        from traitlets.config.loader import Config, JSONFileConfigLoader, PyFileConfigLoader

        loader = PyFileConfigLoader if path.suffix == ".py" else JSONFileConfigLoader
        try:
            merged = Config(config)
            merged.merge(_checked(loader(path.name, path=str(path.parent)).load_config()))
        except BaseException as error:  # the file is a program: it may end in any way, an exit included
            faults.append(f"The configuration file {path} cannot be used: {_what_happened(error, path)}.")
        else:
            config = merged
    prefix = f"--{SECTION}."
    for argument in arguments:
        setting, equals, value = argument.removeprefix(prefix).partition("=")
        if argument.startswith(prefix) and equals:
            config.setdefault(SECTION, {})[setting] = value
    return ({}, tuple(faults)) if faults else (config, ())


def section_of(config: Mapping[str, Any], foreign: Sequence[str] = ()) -> dict[str, Any]:
    """Return the kernel's own section of a configuration as plain values, without the *foreign* names."""
    section = config.get(SECTION, {})
    return {str(key): _plain(value) for key, value in section.items() if key not in foreign}


def user_settings() -> tuple[KernelSettings, tuple[str, ...]]:
    """Return the settings that the user's files make, and the faults in them (the settings are the defaults then)."""
    config, faults = read_config(())
    settings, found = read_settings(section_of(config, BASE_TRAITS), config_places(()).of)
    return settings, (*faults, *found)


def config_places(arguments: Sequence[str]) -> ConfigPlaces:
    """Return what finds file and line of a setting, in what :func:`read_config` reads for these *arguments*."""
    return ConfigPlaces(list(_files(NAMES)), arguments, SECTION)


def misplaced(notebook_folder: Path | None = None) -> tuple[str, ...]:
    """Return a sentence for each file that holds settings of this kernel and is not read. Raises nothing.

    Looked at are other configuration files in Jupyter's config folders, and files of the right name in the notebook's
    folder.
    """
    read = set(_files(NAMES))
    found: list[Path] = []
    for folder in dict.fromkeys(map(Path, jupyter_config_path())):
        for path in _listed(folder):
            if path not in read and path.name.endswith(("_config.py", "_config.json")) and _mentions(path):
                found.append(path)
    beside = notebook_folder or Path.cwd()
    found += [path for path in (beside / name for name in NAMES) if path not in read and path.is_file()]
    where = Path(jupyter_config_dir(), NAMES[0])
    return tuple(
        f"{path} holds settings of this kernel, but that file is not read. Move them to {where} and restart the kernel."
        for path in dict.fromkeys(found)
    )


def _files(names: Sequence[str]) -> Iterator[Path]:
    """Yield the files of these names that exist, the least important first."""
    for folder in reversed(jupyter_config_path()):
        for name in names:
            if Path(folder, name).is_file():
                yield Path(folder, name)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _mentions(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _MENTION.search(file.read(MOST_READ).decode("utf-8", "replace")) is not None
    except OSError:
        return False


def _checked(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a loaded configuration. Raises ValueError when it, or the kernel's section, is no mapping."""
    if not isinstance(config, Mapping):
        raise ValueError(f"it holds a {type(config).__name__} where sections are expected")
    if not isinstance(config.get(SECTION, {}), Mapping):
        raise ValueError(f"the section {SECTION} holds a {type(config[SECTION]).__name__} where settings are expected")
    return config


def _plain(value: Any) -> Any:
    """Return a value as a setting takes it; ``c.AgentlyKernel.x.append(…)`` and its like become lists and mappings."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "get_value") and hasattr(value, "to_dict"):
        return value.get_value({} if isinstance(value.to_dict().get("update"), Mapping) else [])
    return value


def _what_happened(error: BaseException, path: Path) -> str:
    """Return line, kind and text of an error, in one line; the line is that of *path* from which it came."""
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(path) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if line is None or not isinstance(error, SyntaxError):
            line = frame.lineno if frame.filename == str(path) else line
    text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())[:300].rstrip(".")
    return f"{f'line {line}: ' if line else ''}{type(error).__name__}{f': {text}' if text else ''}"

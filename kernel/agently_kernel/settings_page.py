"""The page ``docs/settings.md``, made from the settings themselves: ``python -m agently_kernel.settings_page``."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.settings import SECTION, KernelSettings, allowed_range, amount, public_name

_HEAD = f"""# Settings

Everything that can be set, for the kernel **Agently (sandboxed)** and for `%%agently_exec` in other kernels. Nothing
has to be. Settings are read from `agently_kernel_config.py` (or `.json`) in Jupyter's configuration folders (`jupyter
--config-dir`), when a kernel starts, and never from a notebook or its folder:

```python
c.{SECTION}.providers = ["bubblewrap"]
c.{SECTION}.limits = {{"memory": "4G", "cpus": 2}}
c.{SECTION}.timeout = 600
```

In the `.json` file that is `{{"{SECTION}": {{"timeout": 600}}}}`; on the command line of a kernel
`--{SECTION}.timeout=600`, which wins over files. Sizes are bytes, or text with K, M, G or T (powers of 1024); times
are seconds. A notebook can ask for less than this, never for more. A mistake is told by the first cell, with its file
and line, and nothing runs until it is corrected.
"""

_PARTS = (
    ("limits", ResourceLimits, "What one sandbox may use. Those that are not named keep their default; what holds "
     "each of them here is shown by `%agently facts`."),
    ("collection", CollectionLimits, "What is copied out of a sandbox after a cell. Files that are not copied are "
     "named below it."),
)

_FOOT = """
The `config` of a provider in `providers` is described on the provider's own page: [providers](providers/README.md).
What `outputs` and `network_hosts` mean is told in [output trust](output-trust.md) and [network](network.md). Options
of Jupyter itself (`c.Session…`, `c.Application.log_level`) are read from the same files.
"""


def settings_page() -> str:
    """Return the whole page as Markdown."""
    parts = [_HEAD, _table(f"c.{SECTION}.", KernelSettings)]
    for name, model, about in _PARTS:
        parts += [f"\n## `c.{SECTION}.{name}`\n{_wrapped(about)}\n", _table("", model)]
    return "\n".join(parts) + "\n" + _FOOT


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _table(prefix: str, model: type[Frozen]) -> str:
    """Return a row for each field of *model*: name, what it takes, default, meaning, example."""
    rows = [("setting", "takes", "default", "meaning", "example"), ("---",) * 5]
    for name, field in model.model_fields.items():
        written = public_name(model, name)
        example = next(iter(field.examples or ()), None)
        line = f"c.{SECTION}.{written} = {example!r}" if prefix else f"{{{written!r}: {example!r}}}"
        default = field.get_default(call_default_factory=True)
        rows.append((
            f"`{written}`", _takes(model, name, field.annotation), _default(name, default), field.description or "",
            f"`{line}`".replace("'", '"'),
        ))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _default(name: str, value: object) -> str:
    if isinstance(value, Frozen):
        return "see below"
    if isinstance(value, tuple):
        return ", ".join(f"`{getattr(item, 'value', item)}`" for item in value) or "empty"
    if isinstance(value, Mapping):
        return "empty"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return amount(value, size=name.endswith("_bytes"))
    return f"`{value!r}`".replace("'", '"')


def _takes(model: type[Frozen], name: str, kind: Any) -> str:
    """Return in words what the field takes: its type, and its range where it has one."""
    options = [item for item in get_args(kind) if item is not type(None)] if _is_union(kind) else [kind]
    words = " or ".join(_words(name, item) for item in options)
    bounds = allowed_range(model, name)
    nothing = ", or `None`" if type(None) in get_args(kind) else ""
    return words + (f", {bounds}" if bounds else "") + nothing


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _words(name: str, kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f'`"{item}"`' for item in inner)
    if kind is bool:
        return "`True`, `False`"
    if kind in (int, float):
        return "size" if name.endswith("_bytes") else "number"
    if kind is str:
        return "text"
    if origin is tuple:
        item = inner[0]
        values = [member.value for member in item] if hasattr(item, "__members__") else get_args(item)
        named = ", ".join(f'`"{value}"`' for value in values)
        return "list of " + (named or ("ids" if name == "providers" else "text"))
    return "mapping"


if __name__ == "__main__":
    print(settings_page(), end="")

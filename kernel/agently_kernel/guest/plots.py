"""Plot libraries that would load scripts from the network, or share them among outputs: set to forms that need neither;
and pyplot, whose figures are kept apart for cells that run beside each other.

Each is set up right after it was imported, and only what the user has not chosen otherwise. Nothing is imported here.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any, Callable, Dict, Optional

from .kept_apart import Figures, Show

VEGA_LITE = "application/vnd.vegalite.v5+json"


def install(subshell: Callable[[], str]) -> None:
    """Have the libraries set up when they are imported. *subshell* names the one that the calling code belongs to."""

    def pyplot(helpers: Any) -> None:
        helpers.Gcf.figs = Figures(subshell)

    def inline(backend: Any) -> None:
        backend.show = Show(backend.show, subshell)

    os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")  # else each figure comes a second time, as dead HTML
    actions = {
        "altair": _altair, "bokeh.io": _bokeh, "matplotlib._pylab_helpers": pyplot,
        "matplotlib_inline.backend_inline": inline,
    }
    sys.meta_path.insert(0, _AfterImport(actions))


class _AfterImport:
    """A finder that lets the others find a module and calls a function after it was executed."""

    def __init__(self, actions: Dict[str, Callable[[types.ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        action = self._actions.pop(name, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            try:
                action(module)
            except Exception:
                pass  # another version of the library: it stays as it is

        loader.exec_module = exec_module
        return spec


def _altair(altair: Any) -> None:
    """Charts as data, which front ends draw themselves; the default is a page that loads its scripts from elsewhere."""

    def as_data(spec: Dict[str, Any], **_: Any) -> Dict[str, Any]:
        return {VEGA_LITE: spec, "text/plain": "<a chart of Altair>"}

    if altair.renderers.active == "default":
        altair.renderers.register("agently", as_data)
        altair.renderers.enable("agently")


def _bokeh(io: Any) -> None:
    """Each plot as a page of its own; the default puts the library into the notebook's page for all of them."""
    notebook = io.notebook
    plain_show = notebook.show_doc

    def load(*_: Any, **__: Any) -> None:
        """Nothing: every plot brings the library along."""

    def show(model: Any, state: Any = None, notebook_handle: Optional[Any] = None) -> Any:
        from bokeh.embed import file_html
        from bokeh.resources import INLINE
        from IPython.display import HTML, display

        if notebook_handle:
            return plain_show(model, state, notebook_handle)
        display(HTML(file_html(model, INLINE, "plot")))
        return None

    notebook.install_notebook_hook("jupyter", load, show, notebook.show_app, overwrite=True)

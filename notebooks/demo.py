"""Run a notebook from top to bottom with the kernel it names and print what each cell showed, as soon as it has ended.

Usage: ``python notebooks/demo.py notebooks/quickstart.ipynb``. Exit status 1 when a cell failed that was not meant to
(cells tagged ``raises-exception`` are meant to).
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def show(cell: nbformat.NotebookNode) -> None:
    """Print a code cell and its outputs, longer ones cut."""
    print("\n".join("│ " + line for line in cell.source.splitlines()))
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            print(output.text.rstrip())
        elif output.output_type == "error":
            print(f"{output.ename}: {output.evalue}")
        else:
            kinds = sorted(output.data)
            text = str(output.data.get("text/plain", "")).rstrip()
            print(text if len(text) < 2000 else text[:2000] + " …")
            if len(kinds) > 1:
                print(f"  [shown as {', '.join(kinds)}]")
    print(flush=True)


def main(path: Path) -> int:
    """Execute the notebook at *path*; return the exit status."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    shown = 0

    def show_until(end: int) -> None:
        nonlocal shown
        for cell in notebook.cells[shown:end]:
            if cell.cell_type == "markdown":
                print(cell.source.strip(), end="\n\n", flush=True)
            elif cell.cell_type == "code":
                show(cell)
        shown = max(shown, end)

    def executed(cell: nbformat.NotebookNode, cell_index: int, execute_reply: object) -> None:
        show_until(cell_index + 1)

    client = NotebookClient(
        notebook, timeout=120, coalesce_streams=True, resources=where, on_cell_executed=executed
    )
    failed = ""
    print(f"Running {path} with the kernel {notebook.metadata.kernelspec.display_name}.\n", flush=True)
    try:
        client.execute()
    except CellExecutionError as error:
        failed = str(error)
    show_until(len(notebook.cells))
    if failed:
        print("A cell failed that should not have:\n" + failed, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: demo.py NOTEBOOK")
    sys.exit(main(Path(sys.argv[1])))

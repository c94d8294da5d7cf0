"""Agently (sandboxed): a Jupyter kernel that runs every cell in a sandbox and shows what the sandbox restricts."""

__version__ = "0.1.0"

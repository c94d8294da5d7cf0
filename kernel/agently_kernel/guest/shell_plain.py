"""The interpreter without IPython: standard library only."""

from __future__ import annotations

"""The C library's own buffer of standard output, which C code of the interpreter's process prints into."""

from __future__ import annotations

from typing import Callable, Tuple


def _c_library() -> Tuple[Callable[[], None], Callable[[], None]]:
    """Return (make C's stdout line buffered, flush it); both do nothing where the C library is not to be had."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(library, "stdout")
        return (lambda: library.setvbuf(stdout, None, 1, 0)), (lambda: library.fflush(stdout))
    except (ImportError, OSError, ValueError):
        return (lambda: None), (lambda: None)


line_buffer_c_library, flush_c_library = _c_library()

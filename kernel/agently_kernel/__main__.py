"""``python -m agently_kernel -f CONNECTION_FILE``: what the kernelspec starts."""

from __future__ import annotations

from agently_kernel.app import main

if __name__ == "__main__":
    main()

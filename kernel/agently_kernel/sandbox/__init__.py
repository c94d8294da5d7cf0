"""The host side of a guest, written once for every provider, on top of ``Sandbox.spawn``."""

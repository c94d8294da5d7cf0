"""What runs inside a sandbox: standard library only, Python 3.8 and newer. The host imports only ``wire`` from here."""

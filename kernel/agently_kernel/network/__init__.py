"""The host's end of a sandbox's network: an HTTP proxy that opens the granted hosts and nothing else."""

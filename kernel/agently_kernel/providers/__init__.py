"""One mechanism a file: a probe that observes, and a way to open a sandbox."""

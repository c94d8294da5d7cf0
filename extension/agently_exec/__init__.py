"""``%%agently_exec`` and ``%agently`` for any IPython notebook."""

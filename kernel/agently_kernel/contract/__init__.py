"""The nouns of the system: frozen models, enums, errors, events and the Protocols between the rooms. No I/O."""

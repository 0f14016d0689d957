"""The contracts on the wire, one module for each: what comes in as frozen models, and answers."""

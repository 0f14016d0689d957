"""HTTP: the JSON adapter over the core, and the listener that serves it."""

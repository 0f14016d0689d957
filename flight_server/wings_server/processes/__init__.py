"""Several processes of one server: a parent that starts and watches them, and the processes."""

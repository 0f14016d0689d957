"""The place of the Spark connector. It is empty so far: nothing here reads or writes topics yet."""

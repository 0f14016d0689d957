"""The messages of Flight SQL, as `make protocol` generates them."""

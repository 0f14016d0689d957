"""Storage: writes pages durably, and reads rows from them."""

"""Coordinators: lease messages to members and take their acknowledgements."""

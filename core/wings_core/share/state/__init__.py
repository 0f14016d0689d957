"""The state machine of one partition of a group, without a clock, a lock or a replica."""

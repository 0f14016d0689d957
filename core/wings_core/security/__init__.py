"""Security: authentication of callers, and their rights.

`rights` defines grants and their patterns, `principal` finds the principal of a secret and decides
whether a call is allowed, `quotas` counts the usage of principals, and `tokens` generates and
validates their secrets.
"""

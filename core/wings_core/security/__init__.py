"""Security: authentication of callers, and their rights.

`rights` defines grants and their patterns, `principal` decides whether a call is allowed, `quotas`
counts the usage of principals, `tokens` generates and validates their secrets, and `authenticator`
finds the principal of a secret.
"""

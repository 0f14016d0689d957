"""Security: who calls, and what they may do.

`rights` says what a grant is and which names its pattern matches, `principal` decides whether a
call is allowed, `quotas` counts what a principal uses, `tokens` makes the secrets that principals
present, and `authenticator` finds the principal of a secret.
"""

"""Share groups: a queue over the log, each message held by one worker at a time.

Read `model` first, then `interfaces` (what a replica, a coordinator and the dead letters offer each
other and the server).
"""

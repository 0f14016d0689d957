"""The server of Wings: Flight and HTTP over one log, its settings and its process.

Start it in a test with `wings_server.testing.running_server`, and from a shell with `wings serve`.
"""

"""The gRPC interfaces of Wings: `.proto` files, and generated code.

`make protocol` generates it; a test checks that the committed code is up to date.
"""

"""The gRPC interfaces of Wings: `.proto` files, and the code that is generated from them.

`make protocol` generates; a test sees to it that what is committed is what would be generated.
"""

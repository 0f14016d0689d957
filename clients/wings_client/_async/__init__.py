"""The async client: the engines of the sync client, awaited on an event loop.

pyarrow blocks, so blocking calls run on a bounded number of threads. Streams, consumers and gathers
have threads that read ahead; awaiting what those deliver takes no other thread.
"""

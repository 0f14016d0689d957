"""Kafka's protocol in front of the log: unmodified clients produce, consume and share partitions.

    connection ─▶ wire (frames, room) ─▶ messages (kio) ─▶ produce │ fetch │ groups │ topics
                                                            └─ records: batches v2 ◀▶ Arrow

An adapter over the core's commit, fetch, waits and rights, as `http` is. The event loop, in a
thread of its own, only moves frames and runs groups; whatever decodes or looks into the log runs on
other threads. Kafka's guide to the protocol is the source of all names of messages and errors.
"""

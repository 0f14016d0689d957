"""How much of a range is delivered at a time, so that a poison message does not take neighbours.

A message that makes its workers fail is delivered again and again together with the messages that
came with it, and at the limit all of them would be given up. So the more often a range has been
delivered, the smaller the pieces, down to a single message at the last attempt.
"""


def threshold(limit: int) -> int:
    """Return how many deliveries a range has seen when it begins to be throttled."""
    return max(2, -(-limit // 2))


def is_throttled(count: int, limit: int) -> bool:
    """Tell whether a range that was delivered `count` times is delivered by itself."""
    return count >= threshold(limit)


def deliverable(count: int, messages: int, limit: int) -> int:
    """Return how many messages of a range are delivered at once.

    Args:
        count: Deliveries made of it, below the limit.
        messages: How many it has.
        limit: The group's delivery limit.
    """
    if limit > 2 and count >= limit - 1:
        return 1
    if not is_throttled(count, limit):
        return messages
    return max(1, messages >> (count - threshold(limit) + 1))

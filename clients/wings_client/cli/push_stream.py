"""Pushing rows as they arrive: committed batches are visible, even if a later one fails."""

import threading
from collections.abc import Callable, Set
from concurrent.futures import Future
from contextlib import suppress
from typing import NoReturn

import typer

from wings_client import Client, Producer, Topic
from wings_client.cli.endpoint import KEPT
from wings_client.cli.push_progress import shown
from wings_client.files import OpenFile
from wings_client.files.parts import PartCheck
from wings_core.errors import WingsError

LOOK_SECONDS = 0.5
"""Longest delay of noticing a Ctrl-C just before a wait."""


class StreamPush:
    """The push of one file through a producer."""

    def __init__(self) -> None:
        self._producer: Producer | None = None

    def run(self, client: Client, topic: Topic, file: OpenFile, exact: Set[str]) -> int:
        """Push all rows; blocks until they are committed.

        Args:
            client: Client of the server.
            topic: The topic.
            file: The open file, of which only the first bytes were read.
            exact: Columns with inferred types; see `Rows.parts`.

        Returns:
            The count of rows.

        Raises:
            WingsError: A row does not fit, or the server failed; the message has the number of
                committed first rows.
        """
        check = PartCheck(topic.schema, topic.partition_key)
        producer = self._producer = client.producer(topic)
        try:
            with shown(file, lambda: producer.rows_committed) as bar:
                for part in file.parts(topic.schema, exact):
                    check.check(part)
                    producer.send(part.batch)
                    bar.update()
                if bar.is_shown:
                    producer.flush()
                    bar.update()
                producer.close()
            file.check_complete(producer.rows_committed)
        except WingsError as error:
            _fail(error, producer)
        return producer.rows_committed

    def stop(self) -> NoReturn:
        """Wait for the batches in flight, and print the number of committed rows.

        Raises:
            typer.Exit: Always, with the status of an interrupt.
        """
        problem = ""
        kept = "nothing was pushed"
        producer = self._producer
        if producer is not None:
            try:
                _close_when_answered(producer)
            except WingsError as error:
                problem = f" ({error.message})"
            kept = _kept(producer)
        typer.echo(f"wings: stopped{problem}; {kept}", err=True)
        raise typer.Exit(130)


class Aside(threading.Thread):
    """A call on a thread of its own, so that Ctrl-C ends the wait for it at once.

    A read of an idle pipe cannot be interrupted; its thread ends with the process.
    """

    def __init__(self, call: Callable[[], str]) -> None:
        super().__init__(name="wings-push", daemon=True)
        self._call = call
        self._result: Future[str] = Future()

    def run(self) -> None:
        """Run the call."""
        try:
            self._result.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._result.set_exception(error)

    def result(self) -> str:
        """Return the call's result, or raise its error; blocks until it ends."""
        self.start()
        while True:
            try:
                return self._result.result(LOOK_SECONDS)
            except TimeoutError:
                if self._result.done():
                    return self._result.result()


def _fail(error: WingsError, producer: Producer) -> NoReturn:
    """Wait for the batches in flight, and raise the error with the count of committed rows.

    Raises:
        WingsError: Always.
    """
    with suppress(WingsError):  # The first error is the more specific one.
        _close_when_answered(producer)
    facts = {**error.facts, KEPT: _kept(producer)}
    raise type(error)(f"{error.message}; {facts[KEPT]}", **facts) from None


def _close_when_answered(producer: Producer) -> None:
    """Wait until every batch has a result, and close."""
    # A second `close`, after an interrupted one, would not wait.
    producer.flush()
    producer.close()


def _kept(producer: Producer) -> str:
    rows, in_doubt = producer.rows_committed, producer.rows_in_doubt
    if in_doubt:
        before = "" if not rows else f"the first {_counted(rows)} committed, and "
        further = "rows" if not rows else "further rows"
        return f"{before}up to {in_doubt:,} {further} may be committed"
    if not rows:
        return "nothing was pushed"
    return (
        f"the first {_counted(rows)} committed, and nothing after {'it' if rows == 1 else 'them'}"
    )


def _counted(rows: int) -> str:
    return "row is" if rows == 1 else f"{rows:,} rows are"

"""Pushes rows as they come: a batch is visible once it is committed, also if a later one fails."""

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
"""How late Ctrl-C may be noticed, where it comes just before a wait."""


class StreamPush:
    """The push of one file through a producer."""

    def __init__(self) -> None:
        self._producer: Producer | None = None

    def run(self, client: Client, topic: Topic, file: OpenFile, exact: Set[str]) -> int:
        """Push all rows; blocks until they are committed.

        Args:
            client: Of the server.
            topic: The topic.
            file: Opened, and not read yet but for its first bytes.
            exact: Columns whose types were inferred; see `Rows.parts`.

        Returns:
            The count of rows.

        Raises:
            WingsError: A row does not fit, or the server failed; the message says how many of the
                first rows are committed.
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
        """Wait for the batches in flight, and print how many rows are committed.

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
    """Runs a call on a thread of its own, so that Ctrl-C ends the wait for it at once.

    A read of a pipe that stands still cannot be interrupted; its thread ends with the process.
    """

    def __init__(self, call: Callable[[], str]) -> None:
        super().__init__(name="wings-push", daemon=True)
        self._call = call
        self._result: Future[str] = Future()

    def run(self) -> None:
        """Run the call."""
        try:
            self._result.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - It is raised where the result is asked for.
            self._result.set_exception(error)

    def result(self) -> str:
        """Return what the call returns, or raise what it raises; blocks until then."""
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
    """Wait until every batch is answered or failed, and close."""
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

"""A server whose messages are in an object store, also one that fails."""

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from faulty_store import FAULTS, Fault, faulty_store
from flight_calls import Json, Stream, act, code_of, create_topic, get, numbers, push

from wings_core.errors import PermissionDenied, ResourceExhausted, Unavailable
from wings_core.limits import Limits
from wings_core.storage.objects import RetryBounds, open_objects
from wings_core.storage.open import Storage
from wings_core.times import format_timestamp, now_us
from wings_server.testing import RunningServer, running_server

pytestmark = pytest.mark.usefixtures("pushes_to_storage")

LIMITS = Limits(inline_bytes_max=0, object_flush_seconds=0.01)

IMPATIENT = LIMITS.model_copy(update={"object_retry_seconds_max": 0.3})

# An attempt ends before the proxy hangs up on one that it never answers.
ATTEMPTING = LIMITS.model_copy(update={"object_attempt_seconds_max": 1.5})
ATTEMPTING_IMPATIENT = IMPATIENT.model_copy(update={"object_attempt_seconds_max": 1.5})
WIDE = pa.schema([(f"c{index}", pa.int64()) for index in range(30)])


def _storage(server: RunningServer) -> Storage:
    return server.server.log.storage


def _forget_pages(server: RunningServer) -> None:
    _storage(server).cache.clear()


def test_messages_are_in_the_bucket_and_there_after_a_restart(s3_url: str, tmp_path: Path) -> None:
    with running_server(tmp_path, limits=LIMITS, hot=s3_url) as server:
        client = server.client()
        create_topic(client, "events", ["n: int64"])
        for start in range(0, 100, 10):
            push(client, "events", numbers(*range(start, start + 10)))
        assert get(client, kind="scan", topic="events").column("n") == list(range(100))
        assert not list((tmp_path / "segments").iterdir())
    # It remembers where its messages are.
    with running_server(tmp_path, limits=LIMITS) as server:
        client = server.client()
        assert get(client, kind="scan", topic="events").column("n") == list(range(100))
        assert get(client, topic="events", offset=37, max_messages=5).column("n") == [
            37,
            38,
            39,
            40,
            41,
        ]
        push(client, "events", numbers(100))
    folios = [each.name for each in open_objects(s3_url).list("folios")]
    assert len(folios) == 11


def test_segments_of_before_stay_readable(s3_url: str, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        create_topic(server.client(), "events", ["n: int64"])
        push(server.client(), "events", numbers(1, 2))
    with running_server(tmp_path, hot=s3_url) as server:
        push(server.client(), "events", numbers(3))
        assert get(server.client(), kind="scan", topic="events").column("n") == [1, 2, 3]


def test_many_pushes_share_an_object(s3_url: str) -> None:
    limits = Limits(inline_bytes_max=0, object_flush_seconds=1.0)
    with running_server(limits=limits, hot=s3_url) as server:
        client = server.client()
        create_topic(client, "events", ["n: int64"])
        streams = [Stream(client, numbers(1).schema, "events") for _ in range(20)]
        for stream in streams:
            for number in range(20):
                stream.send(numbers(number))
        for stream in streams:
            assert [stream.answer() is not None for _ in range(20)] == [True] * 20
            stream.close()
        puts = _storage(server).objects["hot"].counts.snapshot()["put"].requests
        assert puts < 20


def test_of_a_large_page_only_the_columns_asked_for_are_read(s3_url: str) -> None:
    rows = 40_000
    batch = pa.record_batch(
        [pa.array(range(index, index + rows), pa.int64()) for index in range(30)], schema=WIDE
    )
    with running_server(limits=LIMITS, hot=s3_url) as server:
        client = server.client()
        create_topic(client, "wide", [f"c{index}: int64" for index in range(30)])
        push(client, "wide", batch)
        _forget_pages(server)
        counts = _storage(server).objects["hot"].counts
        read = counts.snapshot()["read"].bytes if "read" in counts.snapshot() else 0
        answer = get(client, kind="scan", topic="wide", columns=["c7", "c3", "c20"])
        assert answer.table.equals(pa.table(batch).select(["c7", "c3", "c20"]))
        read = counts.snapshot()["read"].bytes - read
        assert 3 * rows * 8 <= read < 0.12 * batch.nbytes


def test_a_small_cache_bounds_what_a_scan_keeps(s3_url: str) -> None:
    limits = Limits(inline_bytes_max=0, object_flush_seconds=0.001, page_cache_bytes_max=1 << 20)
    with running_server(limits=limits, hot=s3_url) as server:
        client = server.client()
        create_topic(client, "events", ["n: int64"])
        for start in range(0, 1_000_000, 50_000):  # Eight times the cache.
            push(client, "events", numbers(*range(start, start + 50_000)))
        for _ in range(2):
            assert get(client, kind="scan", topic="events").table.num_rows == 1_000_000
            assert _storage(server).cache.bytes <= 1 << 20


class _Producer:
    """Pushes batches in order with sequences, and asks again for each until it is acknowledged."""

    def __init__(self, server: RunningServer, number: int, batches: int) -> None:
        self.acknowledged: list[int] = []
        self.offsets: list[int] = []
        self.error: BaseException | None = None
        self._server = server
        self._number = number
        self._batches = batches
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            client = self._server.client()
            for sequence in range(self._batches):
                self._push(client, sequence)
        except BaseException as error:  # noqa: BLE001 - raised again by `join`
            self.error = error

    def _push(self, client: flight.FlightClient, sequence: int) -> None:
        value = self._number * 1_000 + sequence
        command: Json = {"producer_id": f"producer-{self._number}", "sequence": sequence}
        for attempt in itertools.count(1):
            try:
                (answer,) = push(client, "events", numbers(value, value), **command)
            except flight.FlightUnavailableError:
                assert attempt < 20
                continue
            self.acknowledged.append(value)
            self.offsets.append(answer["committed"][0]["start_offset"])
            return


@pytest.mark.parametrize(
    ("rate", "seed", "limits"),
    [
        pytest.param(0.005, 1, ATTEMPTING, id="rarely", marks=pytest.mark.soak),
        pytest.param(0.2, 2, ATTEMPTING, id="often", marks=pytest.mark.soak),
        pytest.param(0.2, 3, ATTEMPTING_IMPATIENT, id="often and impatient"),
    ],
)
def test_nothing_acknowledged_is_lost_or_doubled_where_requests_fail(
    s3_url: str,
    s3_endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    rate: float,
    seed: int,
    limits: Limits,
) -> None:
    with faulty_store(s3_endpoint, seed=seed) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with running_server(tmp_path, limits=limits, hot=s3_url) as server:
            create_topic(server.client(), "events", ["n: int64"])
            proxy.rate = rate
            producers = [_Producer(server, number, 25) for number in range(4)]
            for producer in producers:
                producer.join()
            proxy.rate = rate / 4  # A read is refused where its many requests fail too often.
            expected = _check_log(server, producers)
            proxy.rate = 0.0
        with running_server(tmp_path, limits=LIMITS) as server:
            proxy.rate = rate
            again = get(server.client(), kind="scan", topic="events").column("n")
            proxy.rate = 0.0
        assert again == expected
        assert proxy.requests > 50
        if rate > 0.1:
            assert len(proxy.happened) >= 5, proxy.happened


def _check_log(server: RunningServer, producers: list[_Producer]) -> list[int]:
    _forget_pages(server)
    for _ in range(20):
        try:
            rows = get(server.client(), kind="scan", topic="events").column("n")
            break
        except flight.FlightUnavailableError:
            continue
    else:
        raise AssertionError("no scan came through")
    for producer in producers:
        assert len(producer.acknowledged) == 25
        for value, offset in zip(producer.acknowledged, producer.offsets, strict=True):
            assert rows[offset : offset + 2] == [value, value]
            assert rows.count(value) == 2
    assert len(rows) == 2 * sum(len(producer.acknowledged) for producer in producers)
    return rows


@pytest.mark.parametrize("fault", FAULTS)
def test_every_request_that_fails_once_succeeds_then(
    s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    seconds = 0.5 if fault == "timeout" else 30.0
    bounds = RetryBounds(attempts_max=40, attempt_seconds_max=seconds, pause_seconds=0.001)
    data = random.Random(7).randbytes(100_000)
    with faulty_store(s3_endpoint, rate=0.5, seed=5, faults=(fault,)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        objects = open_objects(s3_url, bounds)
        names = [f"object-{number}" for number in range(4)]
        for name in names:
            objects.put(name, [data])
            assert objects.size(name) == len(data)
            (read,) = objects.read(name, [(10, 90_000)])
            assert read.to_pybytes() == data[10:90_000]
        assert sorted(each.name for each in objects.list()) == names
        for name in names:
            objects.delete(name)
        assert list(objects.list()) == []
        assert proxy.happened[fault] > 1


def test_while_the_store_is_down_the_cache_is_read_and_pushes_wait_then_go_through(
    s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_store(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with running_server(limits=LIMITS, hot=s3_url) as server:
            client = server.client()
            create_topic(client, "events", ["n: int64"])
            push(client, "events", numbers(1, 2))
            proxy.down = True
            before = proxy.requests
            stream = Stream(client, numbers(1).schema, "events")
            stream.send(numbers(3))
            _wait_until(lambda: proxy.requests > before + 1)  # It was tried again.
            assert get(client, kind="scan", topic="events").column("n") == [1, 2]
            proxy.down = False
            answer = stream.answer()
            assert answer is not None
            assert answer["committed"][0]["start_offset"] == 2
            stream.close()
            assert get(client, kind="scan", topic="events").column("n") == [1, 2, 3]


def test_pushes_are_refused_where_the_store_stays_down_and_taken_again_after_that(
    s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_store(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with running_server(limits=IMPATIENT, hot=s3_url) as server:
            client = server.client()
            create_topic(client, "events", ["n: int64"])
            push(client, "events", numbers(1))
            _forget_pages(server)
            proxy.down = True
            with pytest.raises(flight.FlightUnavailableError) as caught:
                push(client, "events", numbers(2))
            assert code_of(caught.value) == "UNAVAILABLE"
            with pytest.raises(flight.FlightUnavailableError) as caught:
                get(client, kind="scan", topic="events")
            assert "could not read folios/" in str(caught.value)
            proxy.down = False
            push(client, "events", numbers(3))
            assert get(client, kind="scan", topic="events").column("n") == [1, 3]


def test_while_the_remote_store_is_down_pushes_go_on_and_what_moves_waits(
    s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_store(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with running_server(limits=IMPATIENT, remote=s3_url) as server:
            client = server.client()
            for topic in ("cached", "moving"):
                create_topic(client, topic, ["n: int64"])
                push(client, topic, numbers(1, 2))
            act(client, "alter-topic", topic="cached", config={"tier_after_ms": 0})
            assert act(client, "maintain")["pages_merged"] == 1
            assert get(client, kind="scan", topic="cached").column("n") == [1, 2]
            act(client, "alter-topic", topic="moving", config={"tier_after_ms": 0})
            proxy.down = True
            failed = act(client, "maintain")
            assert (failed["failures"], failed["pages_merged"]) == (1, 0)
            assert get(client, kind="scan", topic="cached").column("n") == [1, 2]
            push(client, "cached", numbers(3))
            assert get(client, kind="scan", topic="moving").column("n") == [1, 2]
            _forget_pages(server)
            with pytest.raises(flight.FlightUnavailableError) as caught:
                get(client, kind="scan", topic="cached")
            assert "could not read segments/" in str(caught.value)
            assert get(client, topic="cached", offset=2).column("n") == [3]
            proxy.down = False
            assert act(client, "maintain", topic="moving")["pages_merged"] == 1
            assert get(client, kind="scan", topic="cached").column("n") == [1, 2, 3]
            assert get(client, kind="scan", topic="moving").column("n") == [1, 2]


def test_health_metrics_and_one_line_of_the_log_tell_of_an_outage_and_of_its_end(
    s3_url: str,
    s3_endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import httpx

    monkeypatch.setattr("wings_core.storage.objects.interfaces.OUTAGE_SECONDS", 0.0)
    limits = IMPATIENT.model_copy(update={"maintenance_seconds": 0.05})
    with faulty_store(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with running_server(limits=limits, remote=s3_url) as server:
            client = server.client()
            create_topic(client, "events", ["n: int64"])
            push(client, "events", numbers(1))
            begins = format_timestamp(now_us())
            proxy.down = True
            act(client, "alter-topic", topic="events", config={"tier_after_ms": 0})
            _wait_until(lambda: server.server.log.maintainer.total.failures > 1)
            (need,) = act(client, "health")["needs"]
            assert need["kind"] == "object_store_fails"
            told = f"the remote store {s3_url} has failed since "
            assert need["message"].startswith(told)
            assert "could not " in need["message"]
            assert "status 503: SlowDown" in need["message"]
            since = need["message"].removeprefix(told)[: len(begins)]
            assert begins < since < format_timestamp(now_us())
            metrics = httpx.get(f"{server.http}/metrics").text
            seconds = metrics.partition('wings_object_outage_seconds{store="remote"} ')[2]
            assert float(seconds.splitlines()[0]) > 0
            assert httpx.get(f"{server.http}/readyz").status_code == 200
            proxy.down = False
            _wait_until(lambda: server.server.log.maintainer.total.pages_merged > 0)
            assert act(client, "health")["needs"] == []
            assert 'wings_object_outage_seconds{store="remote"} 0.0' in (
                httpx.get(f"{server.http}/metrics").text
            )
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warned) == 2
    assert warned[0].startswith(f"the object store {s3_url} fails: could not ")
    assert warned[1] == f"the object store {s3_url} works again"


def test_an_outage_of_refused_puts_ends_though_nothing_is_to_be_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_core.storage.objects.interfaces.OUTAGE_SECONDS", 0.0)
    limits = Limits(maintenance_seconds=0.05)
    with running_server(limits=limits, remote=(tmp_path / "remote").as_uri()) as server:
        counts = server.server.log.storage.objects["remote"].counts
        with pytest.raises(ResourceExhausted), counts.counted("put"):
            raise ResourceExhausted("the disk is full")
        _wait_until(lambda: counts.outage is None)


def _wait_until(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(12_000):
        if condition():
            return
        tick.wait(0.005)
    raise AssertionError("it did not come to that")


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_damaged_object_is_named_and_its_neighbours_are_readable(
    s3_url: str, damage: str
) -> None:
    import obstore
    from obstore.store import S3Store

    with running_server(limits=LIMITS, hot=s3_url) as server:
        client = server.client()
        create_topic(client, "events", ["n: int64"])
        for number in range(3):
            push(client, "events", numbers(*range(number * 10, number * 10 + 10)))
        _, victim, _ = sorted(each.name for each in open_objects(s3_url).list("folios"))
        raw = S3Store.from_url(s3_url, client_options={"allow_http": True})
        data = bytearray(bytes(obstore.get(raw, victim).bytes()))
        if damage == "missing":
            obstore.delete(raw, victim)
        else:
            data[data.index((15).to_bytes(8, "little"))] ^= 1
            obstore.put(raw, victim, bytes(data if damage == "flipped" else data[:-64]))
        _forget_pages(server)
        for offset, expected in ((0, 0), (20, 20)):
            read = get(client, topic="events", offset=offset, max_messages=10)
            assert read.column("n") == list(range(expected, expected + 10))
        with pytest.raises(flight.FlightInternalError) as caught:
            get(client, topic="events", offset=10, max_messages=10)
        assert code_of(caught.value) == "STORAGE_CORRUPT"
        assert victim in str(caught.value)


def test_another_servers_bucket_is_refused(s3_url: str, tmp_path: Path) -> None:
    from wings_core.errors import InvalidArgument

    with running_server(tmp_path / "one", hot=s3_url):
        pass
    with (
        pytest.raises(InvalidArgument, match="belong to metadata"),
        running_server(tmp_path / "two", hot=s3_url),
    ):
        pass
    with (
        pytest.raises(InvalidArgument, match="and cannot have them at"),
        running_server(tmp_path / "one", hot=f"{s3_url}-other"),
    ):
        pass


def test_folios_of_a_deleted_topic_are_deleted(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(tmp_path, limits=LIMITS, hot=s3_url) as server:
        client = server.client()
        for topic in ("old", "kept"):
            create_topic(client, topic, ["n: int64"])
            push(client, topic, numbers(1))
    # Of a server that takes no pushes: without their grace it may take what is not committed yet.
    monkeypatch.setattr("wings_core.storage.open.OBJECT_GRACE_SECONDS", -60.0)
    with running_server(tmp_path, limits=LIMITS) as server:
        client = server.client()
        objects = open_objects(s3_url)
        assert len(list(objects.list("folios"))) == 2
        act(client, "delete-topic", topic="old")
        _wait_until(lambda: len(list(objects.list("folios"))) == 1)
        _forget_pages(server)
        assert get(client, kind="scan", topic="kept").column("n") == [1]


def test_metrics_tell_of_requests_and_of_the_cache(s3_url: str) -> None:
    import httpx

    with running_server(limits=LIMITS, hot=s3_url) as server:
        client = server.client()
        create_topic(client, "events", ["n: int64"])
        push(client, "events", numbers(1))
        get(client, kind="scan", topic="events")
        _forget_pages(server)
        get(client, kind="scan", topic="events")
        metrics = httpx.get(f"{server.http}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    assert float(values['wings_object_requests_total{operation="put",store="hot"}']) == 1
    assert float(values['wings_object_requests_total{operation="read",store="hot"}']) == 1
    assert float(values['wings_object_bytes_total{operation="read",store="hot"}']) > 0
    assert float(values['wings_object_failures_total{operation="put",store="hot"}']) == 0
    assert float(values["wings_page_cache_hits_total"]) == 1
    assert float(values["wings_page_cache_misses_total"]) == 1
    assert float(values["wings_page_cache_bytes"]) > 0


def test_check_reads_the_pages_in_the_bucket(s3_url: str, tmp_path: Path) -> None:
    import obstore
    from obstore.store import S3Store

    with running_server(tmp_path / "data", limits=LIMITS, hot=s3_url) as server:
        create_topic(server.client(), "events", ["n: int64"])
        for number in range(3):
            push(server.client(), "events", numbers(*range(number * 10, number * 10 + 10)))

    def check() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "wings_client.cli", "check", str(tmp_path / "data")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    right = check()
    assert (right.returncode, right.stderr) == (0, "")
    assert "3 pages, 30 rows" in right.stdout
    victim = sorted(each.name for each in open_objects(s3_url).list("folios"))[1]
    raw = S3Store.from_url(s3_url, client_options={"allow_http": True})
    data = bytearray(bytes(obstore.get(raw, victim).bytes()))
    data[data.index((15).to_bytes(8, "little"))] ^= 1
    obstore.put(raw, victim, bytes(data))
    wrong = check()
    assert wrong.returncode == 1
    assert f"file {victim} at byte 0: the checksum of column 'n' does not match" in wrong.stdout
    assert "1 problem found" in wrong.stdout


@pytest.mark.parametrize("store", ["hot", "remote"])
def test_wrong_credentials_are_said_at_the_start(
    s3_url: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    with faulty_store(s3_endpoint) as proxy:
        proxy.denied = True
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with (
            pytest.raises(PermissionDenied, match="InvalidAccessKeyId") as caught,
            running_server(
                tmp_path,
                hot=s3_url if store == "hot" else None,
                remote=s3_url if store == "remote" else None,
            ),
        ):
            pass
        assert proxy.requests == 1  # There is no use in trying it again.
    assert "wings-test-secret" not in caught.value.message
    assert not (tmp_path / store.upper()).exists()


def test_missing_credentials_are_said_at_the_start(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with (
        pytest.raises(PermissionDenied, match="no credentials were found for s3://"),
        running_server(tmp_path / "data", hot=s3_url),
    ):
        pass


def test_credentials_come_from_a_file(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = wings\naws_secret_access_key = of-a-file\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with running_server(tmp_path / "data", hot=s3_url) as server:
        create_topic(server.client(), "events", ["n: int64"])
        push(server.client(), "events", numbers(1))
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert b"of-a-file" not in path.read_bytes()


def test_a_store_that_is_down_is_said_at_the_start(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with (
        pytest.raises(Unavailable, match="could not list s3://"),
        running_server(tmp_path, limits=IMPATIENT, hot=s3_url),
    ):
        pass

"""`commit_flush`, the function of the schema that compares and sets the rows that a flush touches.

The judge decides in the process that commits, on what that process knows to be stored. For each
row that the flush touches the function gets what the judge saw there and what is to be there. It
locks those rows in the order of `Lock` and compares. Where all is as the judge saw it, it
writes and returns NULL. Else it writes nothing and returns what is stored, as JSON, for the judge
to decide on again. No rule of a commit stands here.

Rows come as arrays of composite types, one for each kind of row, and refer to each other by their
places there, from 1. Loops of statements for single rows are walks along an index whatever the
planner knows of a table, and cost less than one statement over an array where a flush has few rows.

A change of what the function takes is another function, made by a later migration: nodes of the
version before go on to call theirs.
"""

from wings_core.metadata.repeats import RESULTS_KEPT_MAX
from wings_core.metadata.store.database import Lock

TYPES = (
    # `id`: NULL where the topic is not there.
    "CREATE TYPE flush_topic AS (uuid TEXT, id BIGINT)",
    """
    CREATE TYPE flush_stage AS (
        name TEXT, topic INTEGER, seen_topic BIGINT,
        seen_writing TEXT, seen_rows BIGINT, seen_bytes BIGINT, seen_pages BIGINT,
        writing TEXT, rows BIGINT, bytes BIGINT, pages BIGINT
    )
    """,
    "CREATE TYPE flush_producer AS (topic INTEGER, name TEXT, seen BIGINT, next_sequence BIGINT)",
    """
    CREATE TYPE flush_partition AS (
        topic INTEGER, value TEXT, seen_offset BIGINT,
        next_offset BIGINT, last_timestamp BIGINT, added_bytes BIGINT, added_pages BIGINT
    )
    """,
    "CREATE TYPE flush_folio AS (name TEXT, pages BIGINT)",
    """
    CREATE TYPE flush_page AS (
        partition INTEGER, start_offset BIGINT, end_offset BIGINT, timestamp BIGINT, folio INTEGER,
        position BIGINT, length BIGINT, first_row BIGINT, slice_bytes BIGINT, format SMALLINT,
        schema_version INTEGER
    )
    """,
    """
    CREATE TYPE flush_staged_page AS (
        stage INTEGER, number BIGINT, partition TEXT, rows BIGINT, timestamp BIGINT, folio INTEGER,
        position BIGINT, length BIGINT, first_row BIGINT, slice_bytes BIGINT, schema_version INTEGER
    )
    """,
    # The last sequence of a series, and what `Series.to_json` makes of it.
    "CREATE TYPE flush_result AS (producer INTEGER, sequence BIGINT, committed TEXT)",
    # The writer of a flush that may be repeated, the bucket of its lock, and its results as JSON.
    "CREATE TYPE flush_writer AS (name TEXT, bucket INTEGER, number BIGINT, results TEXT)",
)

SEQUENCE_TYPE = """
CREATE TYPE flush_sequence AS (
    topic INTEGER, partition TEXT, producer TEXT, seen TEXT, state TEXT
)
"""
"""`seen` and `state`: JSON of `SequenceDraft`, NULL where there is nothing."""

COMMIT_FLUSH = f"""
CREATE FUNCTION commit_flush(
    transaction UUID,
    node TEXT,
    committed_at BIGINT,
    flush_writer flush_writer,
    topic_buckets INTEGER[], -- Of the locks of topics, in ascending order.
    flush_topics flush_topic[],
    flush_stages flush_stage[],
    flush_producers flush_producer[],
    flush_partitions flush_partition[],
    flush_folios flush_folio[],
    flush_pages flush_page[],
    flush_staged flush_staged_page[],
    flush_results flush_result[],
    flush_sequences flush_sequence[],
    inline_data BYTEA -- The bytes of the first folio, where metadata keeps them.
) RETURNS TEXT LANGUAGE plpgsql AS $function$
#variable_conflict use_column
DECLARE
    differs BOOLEAN := false;
    place INTEGER := 0;
    bucket INTEGER;
    topic flush_topic;
    stage flush_stage;
    producer flush_producer;
    a_partition flush_partition;
    folio flush_folio;
    page flush_page;
    staged flush_staged_page;
    result flush_result;
    numbers flush_sequence;
    found_state TEXT;
    stored RECORD;
    found_id BIGINT;
    topic_ids BIGINT[] := '{{}}';
    stage_ids BIGINT[] := '{{}}';
    partition_ids BIGINT[] := '{{}}';
    folio_ids BIGINT[] := '{{}}';
BEGIN
    IF flush_writer IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock({int(Lock.WRITERS)}, flush_writer.bucket);
        SELECT number, results INTO stored FROM flushes WHERE writer = flush_writer.name;
        IF stored.number >= flush_writer.number THEN
            RETURN json_build_object('number', stored.number, 'results', stored.results);
        END IF;
    END IF;
    FOREACH bucket IN ARRAY topic_buckets LOOP
        PERFORM pg_advisory_xact_lock_shared({int(Lock.TOPICS)}, bucket);
    END LOOP;

    FOREACH topic IN ARRAY flush_topics LOOP
        -- A statement of its own, which sees what was deleted until the lock was had.
        SELECT id INTO found_id FROM topics WHERE uuid = topic.uuid AND deleted_at IS NULL;
        topic_ids := topic_ids || found_id;
        differs := differs OR found_id IS DISTINCT FROM topic.id;
    END LOOP;
    FOREACH stage IN ARRAY flush_stages LOOP
        SELECT id, topic_id, writing, rows, bytes, pages INTO stored
        FROM stages WHERE name = stage.name FOR UPDATE;
        stage_ids := stage_ids || stored.id;
        differs := differs OR
            (stored.topic_id, stored.writing, stored.rows, stored.bytes, stored.pages)
            IS DISTINCT FROM (stage.seen_topic, stage.seen_writing, stage.seen_rows,
            stage.seen_bytes, stage.seen_pages);
    END LOOP;
    FOREACH producer IN ARRAY flush_producers LOOP
        SELECT next_sequence INTO found_id FROM producers
        WHERE topic_id = topic_ids[producer.topic] AND producer_id = producer.name FOR UPDATE;
        differs := differs OR coalesce(found_id, 0) <> producer.seen;
    END LOOP;
    FOREACH numbers IN ARRAY flush_sequences LOOP
        SELECT state INTO found_state FROM partition_sequences
        WHERE topic_id = topic_ids[numbers.topic] AND partition = numbers.partition
            AND producer_id = numbers.producer FOR UPDATE;
        differs := differs OR found_state IS DISTINCT FROM numbers.seen;
    END LOOP;
    FOREACH a_partition IN ARRAY flush_partitions LOOP
        SELECT id, next_offset INTO stored FROM partitions
        WHERE topic_id = topic_ids[a_partition.topic] AND value = a_partition.value FOR UPDATE;
        partition_ids := partition_ids || stored.id;
        differs := differs OR coalesce(stored.next_offset, 0) <> a_partition.seen_offset;
    END LOOP;

    IF differs THEN
        RETURN json_build_object(
            'topics', topic_ids,
            'stages', ARRAY(
                SELECT (
                    SELECT json_build_array(topic_id, writing, rows, bytes, pages)
                    FROM stages WHERE stages.name = seen.name
                ) FROM unnest(flush_stages) AS seen
            ),
            'producers', ARRAY(
                SELECT coalesce((
                    SELECT next_sequence FROM producers
                    WHERE topic_id = topic_ids[seen.topic] AND producer_id = seen.name
                ), 0) FROM unnest(flush_producers) AS seen
            ),
            'sequences', ARRAY(
                SELECT (
                    SELECT json_build_array(state, committed_at) FROM partition_sequences
                    WHERE topic_id = topic_ids[seen.topic]
                        AND partition_sequences.partition = seen.partition
                        AND producer_id = seen.producer
                ) FROM unnest(flush_sequences) AS seen
            ),
            'partitions', ARRAY(
                SELECT (
                    SELECT json_build_array(next_offset, last_timestamp) FROM partitions
                    WHERE topic_id = topic_ids[seen.topic] AND partitions.value = seen.value
                ) FROM unnest(flush_partitions) AS seen
            )
        );
    END IF;

    FOREACH producer IN ARRAY flush_producers LOOP
        CONTINUE WHEN producer.next_sequence = producer.seen;
        UPDATE producers SET next_sequence = producer.next_sequence
        WHERE topic_id = topic_ids[producer.topic] AND producer_id = producer.name;
        CONTINUE WHEN FOUND;
        INSERT INTO producers (topic_id, producer_id, next_sequence)
        VALUES (topic_ids[producer.topic], producer.name, producer.next_sequence)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE serialization_failure;
        END IF;
    END LOOP;
    FOREACH numbers IN ARRAY flush_sequences LOOP
        CONTINUE WHEN numbers.state IS NULL;
        IF numbers.seen IS NOT NULL THEN
            UPDATE partition_sequences
            SET state = numbers.state, committed_at = commit_flush.committed_at
            WHERE topic_id = topic_ids[numbers.topic] AND partition = numbers.partition
                AND producer_id = numbers.producer;
            CONTINUE;
        END IF;
        INSERT INTO partition_sequences (topic_id, partition, producer_id, state, committed_at)
        VALUES (topic_ids[numbers.topic], numbers.partition, numbers.producer, numbers.state,
            commit_flush.committed_at)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE serialization_failure;
        END IF;
    END LOOP;
    FOREACH a_partition IN ARRAY flush_partitions LOOP
        place := place + 1;
        CONTINUE WHEN a_partition.next_offset = a_partition.seen_offset;
        IF partition_ids[place] IS NOT NULL THEN
            UPDATE partitions SET next_offset = a_partition.next_offset,
                last_timestamp = a_partition.last_timestamp,
                bytes = bytes + a_partition.added_bytes, pages = pages + a_partition.added_pages
            WHERE id = partition_ids[place];
            CONTINUE;
        END IF;
        INSERT INTO partitions (topic_id, value, next_offset, last_timestamp, bytes, pages)
        VALUES (topic_ids[a_partition.topic], a_partition.value, a_partition.next_offset,
            a_partition.last_timestamp, a_partition.added_bytes, a_partition.added_pages)
        ON CONFLICT DO NOTHING RETURNING id INTO found_id;
        IF NOT FOUND THEN
            RAISE serialization_failure;
        END IF;
        partition_ids[place] := found_id;
    END LOOP;
    FOREACH folio IN ARRAY flush_folios LOOP
        IF inline_data IS NOT NULL AND folio_ids = '{{}}' THEN
            -- It is new: no other has its name, and to look for one costs as much again.
            INSERT INTO folios (name, pages) VALUES (folio.name, folio.pages)
            RETURNING id INTO found_id;
            INSERT INTO inline_folios (folio_id, data) VALUES (found_id, inline_data);
        ELSE
            INSERT INTO folios (name, pages) VALUES (folio.name, folio.pages)
            ON CONFLICT (name) DO UPDATE SET pages = folios.pages + excluded.pages
            RETURNING id INTO found_id;
        END IF;
        folio_ids := folio_ids || found_id;
    END LOOP;
    FOREACH page IN ARRAY flush_pages LOOP
        INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id,
            position, length, first_row, slice_bytes, format, schema_version)
        VALUES (partition_ids[page.partition], page.end_offset, page.start_offset,
            page.timestamp, folio_ids[page.folio], page.position, page.length,
            page.first_row, page.slice_bytes, page.format, page.schema_version);
    END LOOP;
    place := 0;
    FOREACH stage IN ARRAY flush_stages LOOP
        place := place + 1;
        CONTINUE WHEN stage.pages IS NULL;
        IF stage_ids[place] IS NOT NULL THEN
            UPDATE stages SET rows = stage.rows, bytes = stage.bytes, pages = stage.pages,
                changed_at = commit_flush.committed_at WHERE id = stage_ids[place];
            CONTINUE;
        END IF;
        INSERT INTO stages (name, topic_id, writing, rows, bytes, pages, changed_at)
        VALUES (stage.name, topic_ids[stage.topic], stage.writing, stage.rows, stage.bytes,
            stage.pages, commit_flush.committed_at)
        ON CONFLICT DO NOTHING RETURNING id INTO found_id;
        IF NOT FOUND THEN
            RAISE serialization_failure;
        END IF;
        stage_ids[place] := found_id;
    END LOOP;
    FOREACH staged IN ARRAY flush_staged LOOP
        INSERT INTO staged_pages (stage_id, number, partition, rows, timestamp, folio_id,
            position, length, first_row, slice_bytes, schema_version)
        VALUES (stage_ids[staged.stage], staged.number, staged.partition, staged.rows,
            staged.timestamp, folio_ids[staged.folio], staged.position, staged.length,
            staged.first_row, staged.slice_bytes, staged.schema_version);
    END LOOP;
    FOREACH result IN ARRAY flush_results LOOP
        producer := flush_producers[result.producer];
        INSERT INTO producer_results
            (topic_id, producer_id, slot, sequence, committed, committed_at)
        VALUES (topic_ids[producer.topic], producer.name, result.sequence % {RESULTS_KEPT_MAX},
            result.sequence, result.committed, commit_flush.committed_at)
        ON CONFLICT (topic_id, producer_id, slot) DO UPDATE SET sequence = excluded.sequence,
            committed = excluded.committed, committed_at = excluded.committed_at;
    END LOOP;
    IF flush_writer IS NOT NULL THEN
        INSERT INTO flushes (writer, number, results, committed_at)
        VALUES (flush_writer.name, flush_writer.number, flush_writer.results,
            commit_flush.committed_at)
        ON CONFLICT (writer) DO UPDATE SET number = excluded.number, results = excluded.results,
            committed_at = excluded.committed_at;
    END IF;
    INSERT INTO outcomes (id, committed, decided_at, node)
    VALUES (transaction, true, clock_timestamp(), commit_flush.node);
    RETURN NULL;
END
$function$
"""
"""Rows that another transaction inserted meanwhile cannot be locked before: then it fails, as two
transactions that cannot be serialized do, and is tried again."""

"""`commit_flush`, which a database keeps: a flush in one statement, which is its own transaction.

It locks in the order of `store.locks`, and does what `commit.commit_batches` does in three
exchanges, for a flush that was judged before; see `commit_call`. `commit_page` does the same for
one page of one partition, which most flushes are, and has `commit_flush` do it where the partition
is not there yet, or something is not as was presumed.

A change of what one takes, or means by it, is another function beside it, made by a later
migration: nodes of the version before go on to call theirs.
"""

from typing import LiteralString

from wings_core.metadata.postgres.plans import PLAN_FOR_MANY, ROWS_MANY

COMMIT_FLUSH: LiteralString = f"""
CREATE OR REPLACE FUNCTION commit_flush(
    transaction UUID,
    node TEXT,
    committed_at BIGINT,
    -- Topics, and the kind and buckets of their locks.
    topic_uuids TEXT[],
    lock_kind INTEGER,
    lock_buckets INTEGER[],
    -- Partitions written to: the places of their topics, and what is added to each.
    partition_topics INTEGER[],
    partition_values TEXT[],
    added_rows BIGINT[],
    added_bytes BIGINT[],
    added_pages BIGINT[],
    last_timestamps BIGINT[],
    expected_offsets BIGINT[], -- -1: any; NULL: any of all.
    -- The folio of all pages, and its bytes where they are kept inline.
    folio_name TEXT,
    page_format SMALLINT,
    inline_data BYTEA,
    -- Pages: the places of their partitions, offsets counted from where these end.
    page_partitions INTEGER[],
    page_starts BIGINT[],
    page_ends BIGINT[],
    page_timestamps BIGINT[],
    page_positions BIGINT[],
    page_lengths BIGINT[],
    page_first_rows BIGINT[],
    page_slice_bytes BIGINT[],
    page_versions INTEGER[],
    -- Producers: the places of their topics, the sequence that is to be next and that after it.
    producer_topics INTEGER[],
    producer_names TEXT[],
    first_sequences BIGINT[],
    next_sequences BIGINT[],
    -- Their results: the places of producers, sequences, slots; and the ranges of each.
    result_producers INTEGER[],
    result_sequences BIGINT[],
    result_slots INTEGER[],
    range_results INTEGER[],
    range_partitions INTEGER[],
    range_starts BIGINT[],
    range_ends BIGINT[],
    range_timestamps BIGINT[]
) RETURNS TEXT LANGUAGE plpgsql AS $function$
DECLARE
    bucket INTEGER;
    wanted_uuid TEXT;
    one_id BIGINT;
    topic_ids BIGINT[];
    partition_ids BIGINT[];
    new_partitions BIGINT[];
    new_producer_topics BIGINT[];
    new_producer_names TEXT[];
    starts BIGINT[];
    stored_timestamps BIGINT[];
    stored_sequences BIGINT[];
    new_folio BIGINT;
    answer TEXT;
BEGIN
    IF greatest(cardinality(partition_values), cardinality(producer_names)) >= {ROWS_MANY} THEN
        PERFORM {PLAN_FOR_MANY};
    END IF;
    FOREACH bucket IN ARRAY lock_buckets LOOP
        PERFORM pg_advisory_xact_lock_shared(lock_kind, bucket);
    END LOOP;
    -- Statements of their own, which see what was deleted until the locks were had.
    FOREACH wanted_uuid IN ARRAY topic_uuids LOOP
        SELECT id INTO one_id FROM topics WHERE uuid = wanted_uuid AND deleted_at IS NULL;
        topic_ids := topic_ids || one_id;
    END LOOP;
    IF array_position(topic_ids, NULL) IS NOT NULL THEN
        RETURN NULL;
    END IF;

    IF producer_names IS NOT NULL THEN
        WITH inserted AS (
            INSERT INTO producers (topic_id, producer_id)
            SELECT topic_ids[wanted.topic], wanted.name
            FROM unnest(producer_topics, producer_names) AS wanted (topic, name)
            WHERE NOT EXISTS (
                SELECT FROM producers AS known
                WHERE known.topic_id = topic_ids[wanted.topic] AND known.producer_id = wanted.name
            )
            ORDER BY topic_ids[wanted.topic], wanted.name COLLATE "C"
            ON CONFLICT DO NOTHING RETURNING topic_id, producer_id
        )
        SELECT array_agg(topic_id), array_agg(producer_id)
        INTO new_producer_topics, new_producer_names FROM inserted;
        SELECT array_agg(locked.next_sequence ORDER BY locked.place) INTO stored_sequences
        FROM (
            SELECT producers.next_sequence, wanted.place
            FROM unnest(producer_topics, producer_names) WITH ORDINALITY
                AS wanted (topic, name, place)
            JOIN producers ON producers.topic_id = topic_ids[wanted.topic]
            AND producers.producer_id = wanted.name
            ORDER BY producers.topic_id, producers.producer_id
            FOR UPDATE OF producers
        ) AS locked;
    END IF;

    WITH inserted AS (
        INSERT INTO partitions (topic_id, value)
        SELECT topic_ids[wanted.topic], wanted.value
        FROM unnest(partition_topics, partition_values) AS wanted (topic, value)
        WHERE NOT EXISTS (
            SELECT FROM partitions AS known
            WHERE known.topic_id = topic_ids[wanted.topic] AND known.value = wanted.value
        )
        ORDER BY topic_ids[wanted.topic], wanted.value COLLATE "C"
        ON CONFLICT DO NOTHING RETURNING id
    )
    SELECT array_agg(id) INTO new_partitions FROM inserted;
    SELECT array_agg(locked.id ORDER BY locked.place),
        array_agg(locked.next_offset ORDER BY locked.place),
        array_agg(locked.last_timestamp ORDER BY locked.place)
    INTO partition_ids, starts, stored_timestamps
    FROM (
        SELECT partitions.id, partitions.next_offset, partitions.last_timestamp, wanted.place
        FROM unnest(partition_topics, partition_values) WITH ORDINALITY
            AS wanted (topic, value, place)
        JOIN partitions ON partitions.topic_id = topic_ids[wanted.topic]
        AND partitions.value = wanted.value
        ORDER BY partitions.topic_id, partitions.value
        FOR UPDATE OF partitions
    ) AS locked;

    IF stored_sequences IS DISTINCT FROM first_sequences
    OR expected_offsets IS NOT NULL AND EXISTS (
        SELECT FROM unnest(starts, expected_offsets) AS compared (start, expected)
        WHERE compared.expected >= 0 AND compared.start <> compared.expected
    ) THEN
        DELETE FROM partitions WHERE id = ANY(new_partitions);
        DELETE FROM producers
        USING unnest(new_producer_topics, new_producer_names) AS unused (topic_id, name)
        WHERE producers.topic_id = unused.topic_id AND producers.producer_id = unused.name;
        RETURN NULL;
    END IF;

    UPDATE partitions SET next_offset = partitions.next_offset + added.rows,
        bytes = partitions.bytes + added.bytes, pages = partitions.pages + added.pages,
        last_timestamp = greatest(partitions.last_timestamp, added.last_timestamp)
    FROM unnest(partition_ids, added_rows, added_bytes, added_pages, last_timestamps)
        AS added (id, rows, bytes, pages, last_timestamp)
    WHERE partitions.id = added.id;

    INSERT INTO folios (name, pages) VALUES (folio_name, cardinality(page_partitions))
    ON CONFLICT (name) DO UPDATE SET pages = folios.pages + excluded.pages
    RETURNING id INTO new_folio;
    INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id,
        position, length, first_row, slice_bytes, format, schema_version)
    SELECT partition_ids[page.partition], starts[page.partition] + page.last,
        starts[page.partition] + page.first,
        greatest(stored_timestamps[page.partition], page.timestamp), new_folio,
        page.position, page.length, page.first_row, page.slice_bytes, page_format, page.version
    FROM unnest(page_partitions, page_starts, page_ends, page_timestamps, page_positions,
        page_lengths, page_first_rows, page_slice_bytes, page_versions)
        AS page (partition, first, last, timestamp, position, length, first_row, slice_bytes,
        version);
    IF inline_data IS NOT NULL THEN
        INSERT INTO inline_folios (folio_id, data) VALUES (new_folio, inline_data);
    END IF;

    IF producer_names IS NOT NULL THEN
        UPDATE producers SET next_sequence = wanted.next_sequence
        FROM unnest(producer_topics, producer_names, next_sequences)
            AS wanted (topic, name, next_sequence)
        WHERE producers.topic_id = topic_ids[wanted.topic] AND producers.producer_id = wanted.name;
        INSERT INTO producer_results
            (committed_at, topic_id, producer_id, slot, sequence, committed)
        SELECT commit_flush.committed_at, topic_ids[producer_topics[result_producers[result]]],
            producer_names[result_producers[result]], result_slots[result],
            result_sequences[result],
            json_agg(json_build_object(
                'partition', partition_values[partition],
                'start_offset', starts[partition] + range_start,
                'end_offset', starts[partition] + range_end,
                'timestamp', greatest(stored_timestamps[partition], range_timestamp)
            ) ORDER BY place)::text
        FROM unnest(range_results, range_partitions, range_starts, range_ends, range_timestamps)
            WITH ORDINALITY
            AS ranges (result, partition, range_start, range_end, range_timestamp, place)
        GROUP BY result
        ON CONFLICT (topic_id, producer_id, slot) DO UPDATE SET sequence = excluded.sequence,
            committed = excluded.committed, committed_at = excluded.committed_at;
    END IF;

    answer := array_to_string(starts, ',') || ';' || array_to_string(stored_timestamps, ',', '');
    INSERT INTO outcomes (id, committed, decided_at, node, result)
    VALUES (transaction, true, clock_timestamp(), node, answer);
    RETURN answer;
END
$function$
"""

COMMIT_PAGE: LiteralString = """
CREATE OR REPLACE FUNCTION commit_page(
    transaction UUID,
    node TEXT,
    committed_at BIGINT,
    topic_uuid TEXT,
    lock_kind INTEGER,
    lock_bucket INTEGER,
    partition_value TEXT,
    added_rows BIGINT,
    added_bytes BIGINT,
    page_timestamp BIGINT,
    expected_offset BIGINT, -- -1: any.
    folio_name TEXT,
    page_format SMALLINT,
    inline_data BYTEA,
    page_position BIGINT,
    page_length BIGINT,
    page_first_row BIGINT,
    page_slice_bytes BIGINT,
    page_version INTEGER,
    producer_name TEXT, -- NULL: none.
    page_sequence BIGINT,
    result_slot INTEGER
) RETURNS TEXT LANGUAGE plpgsql AS $function$
DECLARE
    found_topic BIGINT;
    found_partition BIGINT;
    new_end BIGINT;
    new_timestamp BIGINT;
    new_folio BIGINT;
    answer TEXT;
BEGIN
    -- An expression costs less than a statement. Those that follow see what was deleted until the
    -- lock was had.
    IF pg_advisory_xact_lock_shared(lock_kind, lock_bucket) IS NULL THEN
        RETURN NULL; -- It never is.
    END IF;
    IF producer_name IS NOT NULL THEN
        SELECT id INTO found_topic FROM topics WHERE uuid = topic_uuid AND deleted_at IS NULL;
        UPDATE producers SET next_sequence = page_sequence + 1
        WHERE topic_id = found_topic AND producer_id = producer_name
        AND next_sequence = page_sequence;
    END IF;
    IF producer_name IS NULL OR FOUND THEN
        UPDATE partitions SET next_offset = next_offset + added_rows,
            bytes = bytes + added_bytes, pages = pages + 1,
            last_timestamp = greatest(last_timestamp, page_timestamp)
        WHERE topic_id = (SELECT id FROM topics WHERE uuid = topic_uuid AND deleted_at IS NULL)
        AND value = partition_value AND (expected_offset < 0 OR next_offset = expected_offset)
        RETURNING id, next_offset, last_timestamp
        INTO found_partition, new_end, new_timestamp;
        IF found_partition IS NULL AND producer_name IS NOT NULL THEN
            UPDATE producers SET next_sequence = page_sequence
            WHERE topic_id = found_topic AND producer_id = producer_name;
        END IF;
    END IF;
    IF found_partition IS NULL THEN
        RETURN commit_flush(
            transaction, node, committed_at,
            ARRAY[topic_uuid], lock_kind, ARRAY[lock_bucket],
            ARRAY[1], ARRAY[partition_value], ARRAY[added_rows], ARRAY[added_bytes],
            ARRAY[1::bigint], ARRAY[page_timestamp], ARRAY[expected_offset],
            folio_name, page_format, inline_data,
            ARRAY[1], ARRAY[0::bigint], ARRAY[added_rows - 1], ARRAY[page_timestamp],
            ARRAY[page_position], ARRAY[page_length], ARRAY[page_first_row],
            ARRAY[page_slice_bytes], ARRAY[page_version],
            ARRAY[1], CASE WHEN producer_name IS NULL THEN NULL ELSE ARRAY[producer_name] END,
            CASE WHEN producer_name IS NULL THEN NULL ELSE ARRAY[page_sequence] END,
            ARRAY[page_sequence + 1],
            ARRAY[1], ARRAY[page_sequence], ARRAY[result_slot],
            ARRAY[1], ARRAY[1], ARRAY[0::bigint], ARRAY[added_rows - 1], ARRAY[page_timestamp]
        );
    END IF;

    IF inline_data IS NULL THEN
        INSERT INTO folios (name, pages) VALUES (folio_name, 1)
        ON CONFLICT (name) DO UPDATE SET pages = folios.pages + 1
        RETURNING id INTO new_folio;
    ELSE -- Which is new: no other can have its name, and to look for one costs as much again.
        INSERT INTO folios (name, pages) VALUES (folio_name, 1) RETURNING id INTO new_folio;
        INSERT INTO inline_folios (folio_id, data) VALUES (new_folio, inline_data);
    END IF;
    INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id,
        position, length, first_row, slice_bytes, format, schema_version)
    VALUES (found_partition, new_end - 1, new_end - added_rows, new_timestamp, new_folio,
        page_position, page_length, page_first_row, page_slice_bytes, page_format, page_version);
    IF producer_name IS NOT NULL THEN
        INSERT INTO producer_results
            (committed_at, topic_id, producer_id, slot, sequence, committed)
        VALUES (commit_page.committed_at, found_topic, producer_name, result_slot, page_sequence,
            json_build_array(json_build_object(
                'partition', partition_value,
                'start_offset', new_end - added_rows,
                'end_offset', new_end - 1,
                'timestamp', new_timestamp
            ))::text)
        ON CONFLICT (topic_id, producer_id, slot) DO UPDATE SET sequence = excluded.sequence,
            committed = excluded.committed, committed_at = excluded.committed_at;
    END IF;
    answer := new_end - added_rows || ';' || new_timestamp;
    INSERT INTO outcomes (id, committed, decided_at, node, result)
    VALUES (transaction, true, clock_timestamp(), commit_page.node, answer);
    RETURN answer;
END
$function$
"""

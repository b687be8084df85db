"""The statements of the queue, written once, with the fragments of ``storage.syntax`` where the databases differ.

Every time is the database's own: the clocks of the machines that use it may differ and jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from agent3.storage.syntax import SYNTAX, Dialect

__all__ = ["load_statements"]

_STATE = """
    EXISTS (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'ready') AS ready,
    EXISTS (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'new') AS new,
    (SELECT MIN(due) FROM queue_messages WHERE queue = ? AND state = 'delayed') - {now} AS delayed,
    (SELECT MIN(due) FROM queue_messages WHERE queue = ? AND state = 'leased') - {now} AS leased,
    (SELECT MAX(due) FROM queue_messages WHERE queue = ? AND state = 'leased') - {now} AS longest
"""
_STATEMENTS = {
    # The row of the queue is its lock: a transaction that admits, ends or counts messages holds it until its commit.
    "lock": """
        INSERT INTO queues (name, depth) VALUES (?, 0) ON CONFLICT (name) DO UPDATE SET depth = queues.depth
        RETURNING depth, {now} AS now, {state}
        """,
    "set_depth": "UPDATE queues SET depth = ? WHERE name = ?",
    # Where the database notifies: it wakes the consumers of other processes at the commit.
    "set_depth_and_notify": "UPDATE queues SET depth = ? WHERE name = ? RETURNING pg_notify(?, ?)",
    "notify": "SELECT pg_notify(?, ?)",
    "look": "SELECT {state}",
    # Put
    # Where the database is a file: the bytes by which it may still grow, or that are free inside.
    "spare": """
        SELECT (max_page_count - page_count + freelist_count) * page_size AS bytes
        FROM pragma_max_page_count(), pragma_page_count(), pragma_freelist_count(), pragma_page_size()
        """,
    "insert": """
        INSERT INTO queue_messages (queue, id, context, priority, state, due, put, body, checksum)
        VALUES (?, ?, ?, ?, ?, {now} + CAST(? AS DOUBLE PRECISION), {now}, ?, ?)
        """,
    # The same in one statement, where parameters can be arrays: twice as fast on PostgreSQL.
    "insert_all": """
        INSERT INTO queue_messages (queue, id, context, priority, state, due, put, body, checksum)
        SELECT ?, given.id, given.context, given.priority, given.state, {now} + given.delay, {now}, given.body,
            given.checksum
        FROM unnest(
            CAST(? AS TEXT[]), CAST(? AS TEXT[]), CAST(? AS BIGINT[]), CAST(? AS TEXT[]), CAST(? AS DOUBLE PRECISION[]),
            CAST(? AS BYTEA[]), CAST(? AS BIGINT[])
        ) AS given (id, context, priority, state, delay, body, checksum)
        """,
    # Likewise, everything in one statement, since each is a round trip. It changes nothing and returns no row when the
    # queue is new, has no room for all, or has messages to admit. An array that is too short, such as an empty one, is
    # filled up with NULL. The clock is read once: each reading costs as much as a column.
    "put_all": """
        WITH room AS (
            UPDATE queues SET depth = depth + CAST(? AS BIGINT)
            WHERE name = ? AND depth + CAST(? AS BIGINT) <= ?
                AND NOT EXISTS (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'new')
            RETURNING depth, {now} AS now
        ), added AS (
            INSERT INTO queue_messages (queue, id, priority, state, due, put, body, checksum)
            SELECT ?, given.id, COALESCE(given.priority, 0), CASE WHEN given.delay > 0 THEN 'delayed' ELSE 'ready' END,
                room.now + COALESCE(given.delay, 0), room.now, given.body, given.checksum
            FROM room, unnest(
                CAST(? AS TEXT[]), CAST(? AS BIGINT[]), CAST(? AS DOUBLE PRECISION[]), CAST(? AS BYTEA[]),
                CAST(? AS BIGINT[])
            ) AS given (id, priority, delay, body, checksum)
        )
        SELECT depth, pg_notify(?, ?) FROM room
        """,
    "known_keys": "SELECT key, id, hash FROM queue_keys WHERE queue = ? AND key IN ({json_texts})",
    "insert_key": """
        INSERT INTO queue_keys (queue, key, id, hash, expires)
        VALUES (?, ?, ?, ?, {now} + CAST(? AS DOUBLE PRECISION))
        """,
    "uncounted": """
        SELECT (SELECT depth FROM queues WHERE name = ?) AS depth, COUNT(*) AS new
        FROM (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'new' LIMIT ?) AS counted
        """,
    # A new message is the head of its context if there is no head and no older new one. A statement may change its rows
    # in any order, and SQLite shows it the rows changed so far: neither alters the result. A message that was due when
    # it was put stays due, even if the clock was set back since.
    "admit": """
        UPDATE queue_messages SET state = CASE
            WHEN context IS NOT NULL AND (
                EXISTS (SELECT 1 FROM queue_messages AS head WHERE head.queue = queue_messages.queue
                        AND head.context = queue_messages.context AND head.context IS NOT NULL
                        AND head.state IN ('ready', 'delayed', 'leased'))
                OR EXISTS (SELECT 1 FROM queue_messages AS older WHERE older.queue = queue_messages.queue
                           AND older.context = queue_messages.context AND older.state = 'new'
                           AND older.seq < queue_messages.seq)
            ) THEN 'waiting'
            WHEN due > {now} AND due > put THEN 'delayed'
            ELSE 'ready' END
        WHERE queue = ? AND state = 'new'
        """,
    # Claim
    "claim": """
        WITH chosen AS MATERIALIZED (
            SELECT seq FROM queue_messages WHERE queue = ? AND state = 'ready' ORDER BY priority DESC, seq LIMIT ?
            {skip_locked}
        )
        UPDATE queue_messages
        SET state = 'leased', token = token + 1, attempts = attempts + 1, due = {now} + CAST(? AS DOUBLE PRECISION)
        WHERE seq IN (SELECT seq FROM chosen)
        RETURNING seq, id, body, context, priority, attempts, token, checksum, {now} - put AS age
        """,
    "come_due": "UPDATE queue_messages SET state = 'ready' WHERE queue = ? AND state = 'delayed' AND due <= {now}",
    "expired": """
        SELECT seq, token, attempts, history, context FROM queue_messages
        WHERE queue = ? AND state = 'leased' AND due <= {now}
        """,
    # No lease is that long: the clock was set back. Its holder, if it still exists, gets a lease of the usual length.
    "shorten": """
        UPDATE queue_messages SET due = {now} + CAST(? AS DOUBLE PRECISION)
        WHERE queue = ? AND state = 'leased' AND due > {now} + CAST(? AS DOUBLE PRECISION)
        """,
    # The end of a lease
    # A consumer whose lease is over still holds the message until another takes it, which raises its token. Giving it
    # back raises the token too, so that it is no longer held. The rows are locked against being taken in between.
    "held": """
        SELECT seq, token, attempts, history, context FROM queue_messages
        WHERE seq IN ({json_integers}) AND queue = ? AND state IN ('leased', 'ready')
        {for_update}
        """,
    "extend": """
        UPDATE queue_messages SET state = 'leased', due = {now} + CAST(? AS DOUBLE PRECISION) WHERE seq = ?
        """,
    "delete": "DELETE FROM queue_messages WHERE seq IN ({json_integers})",
    "finish": """
        UPDATE queue_messages SET state = 'done', due = {now} + CAST(? AS DOUBLE PRECISION)
        WHERE seq IN ({json_integers})
        """,
    "release": """
        UPDATE queue_messages SET state = 'ready', attempts = attempts - 1, token = token + 1
        WHERE seq IN ({json_integers})
        """,
    "retry": """
        UPDATE queue_messages
        SET state = ?, due = {now} + CAST(? AS DOUBLE PRECISION), history = ?, token = token + 1 WHERE seq = ?
        """,
    "take_back": "UPDATE queue_messages SET state = 'ready', due = {now}, history = ? WHERE seq = ?",
    "promote": """
        UPDATE queue_messages SET state = CASE WHEN due > {now} AND due > put THEN 'delayed' ELSE 'ready' END
        WHERE seq IN (
            SELECT (SELECT next.seq FROM queue_messages AS next
                    WHERE next.queue = ? AND next.context = ended.item AND next.state = 'waiting'
                    ORDER BY next.seq LIMIT 1)
            FROM ({json_texts}) AS ended
        )
        """,
    # Dead letters, and what is old
    "letters": """
        SELECT seq, id, body, context, priority, attempts, put, history FROM queue_messages
        WHERE queue = ? AND state = 'dead' AND seq > ? ORDER BY seq LIMIT ?
        """,
    "replay": """
        UPDATE queue_messages SET state = 'new', attempts = 0, due = put, token = token + 1
        WHERE queue = ? AND state = ? AND id IN ({json_texts})
        """,
    "drop": "DELETE FROM queue_messages WHERE queue = ? AND state = 'dead' AND id IN ({json_texts})",
    "purge_done": """
        DELETE FROM queue_messages WHERE seq IN (
            SELECT seq FROM queue_messages WHERE queue = ? AND state = 'done' AND due <= {now} ORDER BY due LIMIT ?)
        """,
    # Only the oldest are looked at, since all are kept equally long.
    "purge_dead": """
        DELETE FROM queue_messages WHERE due <= {now} AND seq IN (
            SELECT seq FROM queue_messages WHERE queue = ? AND state = 'dead' ORDER BY seq LIMIT ?)
        """,
    "drop_oldest": """
        DELETE FROM queue_messages WHERE seq IN (
            SELECT seq FROM queue_messages WHERE queue = ? AND state = 'dead' AND seq <= ? ORDER BY seq LIMIT ?)
        """,
    "too_old": """
        SELECT seq FROM queue_messages WHERE queue = ? AND state = 'dead' ORDER BY seq DESC LIMIT 1 OFFSET ?
        """,
    "purge_keys": """
        DELETE FROM queue_keys WHERE queue = ? AND key IN (
            SELECT key FROM queue_keys WHERE queue = ? AND expires <= {now} ORDER BY expires LIMIT ?)
        """,
    "depth": """
        SELECT state, COUNT(*) AS count, {now} - MIN(put) AS oldest FROM queue_messages WHERE queue = ? GROUP BY state
        """,
}


@cache
def load_statements(dialect: Dialect) -> Mapping[str, str]:
    """The statements by name, as one database spells them."""
    syntax = SYNTAX[dialect]
    return {name: syntax.fill(text.replace("{state}", _STATE)) for name, text in _STATEMENTS.items()}

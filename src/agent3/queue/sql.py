"""The statements of the queue, written once, and the few words in which the two databases differ.

Every time is the database's own: clocks of the machines that use it may differ and jump.
"""

from __future__ import annotations

from functools import cache

from agent3.storage.database import Dialect

__all__ = ["sql"]

_WORDS: dict[Dialect, dict[str, str]] = {
    "sqlite": {
        "{now}": "((julianday('now') - 2440587.5) * 86400.0)",
        "{skip locked}": "",
        "{locked}": "",
        "{numbers}": "SELECT value FROM json_each(?)",
        "{texts}": "SELECT value AS item FROM json_each(?)",
    },
    "postgres": {
        "{now}": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
        "{skip locked}": "FOR UPDATE SKIP LOCKED",
        "{locked}": "FOR UPDATE",
        "{numbers}": "SELECT CAST(json_array_elements_text(CAST(CAST(? AS TEXT) AS json)) AS BIGINT)",
        "{texts}": "SELECT json_array_elements_text(CAST(CAST(? AS TEXT) AS json)) AS item",
    },
}

_SEEN = """
    EXISTS (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'ready') AS ready,
    EXISTS (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'new') AS new,
    (SELECT MIN(due) FROM queue_messages WHERE queue = ? AND state = 'delayed') - {now} AS delayed,
    (SELECT MIN(due) FROM queue_messages WHERE queue = ? AND state = 'leased') - {now} AS leased,
    (SELECT MAX(due) FROM queue_messages WHERE queue = ? AND state = 'leased') - {now} AS longest
"""
_STATEMENTS = {
    # The row of the queue is its lock: whoever lines up, ends or counts messages holds it until the commit.
    "lock": """
        INSERT INTO queues (name, depth) VALUES (?, 0) ON CONFLICT (name) DO UPDATE SET depth = queues.depth
        RETURNING depth, {now} AS now, {seen}
        """,
    "set_depth": "UPDATE queues SET depth = ? WHERE name = ?",
    # PostgreSQL only: waiting consumers of other processes hear it at the commit.
    "set_depth_and_tell": "UPDATE queues SET depth = ? WHERE name = ? RETURNING pg_notify(?, ?)",
    "tell": "SELECT pg_notify(?, ?)",
    "look": "SELECT {seen}",
    # Put
    # SQLite only: bytes that the file may still grow by, or has free inside.
    "spare": """
        SELECT (max_page_count - page_count + freelist_count) * page_size AS bytes
        FROM pragma_max_page_count(), pragma_page_count(), pragma_freelist_count(), pragma_page_size()
        """,
    "insert": """
        INSERT INTO queue_messages (queue, id, context, priority, state, due, put, body, checksum)
        VALUES (?, ?, ?, ?, ?, {now} + CAST(? AS DOUBLE PRECISION), {now}, ?, ?)
        """,
    # The same in one statement, which PostgreSQL thanks with twice the speed. SQLite has no arrays.
    "insert_all": """
        INSERT INTO queue_messages (queue, id, context, priority, state, due, put, body, checksum)
        SELECT ?, one.id, one.context, one.priority, one.state, {now} + one.delay, {now}, one.body, one.checksum
        FROM unnest(
            CAST(? AS TEXT[]), CAST(? AS TEXT[]), CAST(? AS BIGINT[]), CAST(? AS TEXT[]), CAST(? AS DOUBLE PRECISION[]),
            CAST(? AS BYTEA[]), CAST(? AS BIGINT[])
        ) AS one (id, context, priority, state, delay, body, checksum)
        """,
    # All of it at once, where nothing has to be looked at first: PostgreSQL only, where every statement is a journey.
    # It changes nothing and gives no row when the queue is new, has no room for all, or has something to admit.
    # An array that is too short, as an empty one is, stands for nothings. The clock is read once: each look at it costs
    # as much as a column.
    "put_all": """
        WITH room AS (
            UPDATE queues SET depth = depth + CAST(? AS BIGINT)
            WHERE name = ? AND depth + CAST(? AS BIGINT) <= ?
                AND NOT EXISTS (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'new')
            RETURNING depth, {now} AS now
        ), added AS (
            INSERT INTO queue_messages (queue, id, priority, state, due, put, body, checksum)
            SELECT ?, one.id, COALESCE(one.priority, 0), CASE WHEN one.delay > 0 THEN 'delayed' ELSE 'ready' END,
                room.now + COALESCE(one.delay, 0), room.now, one.body, one.checksum
            FROM room, unnest(
                CAST(? AS TEXT[]), CAST(? AS BIGINT[]), CAST(? AS DOUBLE PRECISION[]), CAST(? AS BYTEA[]),
                CAST(? AS BIGINT[])
            ) AS one (id, priority, delay, body, checksum)
        )
        SELECT depth, pg_notify(?, ?) FROM room
        """,
    "known_keys": "SELECT key, id, hash FROM queue_keys WHERE queue = ? AND key IN ({texts})",
    "insert_key": """
        INSERT INTO queue_keys (queue, key, id, hash, expires)
        VALUES (?, ?, ?, ?, {now} + CAST(? AS DOUBLE PRECISION))
        """,
    "uncounted": """
        SELECT (SELECT depth FROM queues WHERE name = ?) AS depth, COUNT(*) AS new
        FROM (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'new' LIMIT ?) AS counted
        """,
    # A new message is the head of its context if there is no head and no older new one. Rows of one statement may be
    # changed in any order, and SQLite shows it what is changed already: neither alters the answer. One that was due
    # when it was put stays so, also when the clock was set back since.
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
            {skip locked}
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
    # No lease is as long as that: the clock was set back. Its holder, if there is one, gets as long as anybody.
    "shorten": """
        UPDATE queue_messages SET due = {now} + CAST(? AS DOUBLE PRECISION)
        WHERE queue = ? AND state = 'leased' AND due > {now} + CAST(? AS DOUBLE PRECISION)
        """,
    # The end of a lease
    # Whoever's lease is over still holds the message until somebody takes it, which raises its token; whoever gave it
    # back does not, since that raises it too. Held ones are locked: nobody may take them in between.
    "held": """
        SELECT seq, token, attempts, history, context FROM queue_messages
        WHERE seq IN ({numbers}) AND queue = ? AND state IN ('leased', 'ready')
        {locked}
        """,
    "extend": """
        UPDATE queue_messages SET state = 'leased', due = {now} + CAST(? AS DOUBLE PRECISION) WHERE seq = ?
        """,
    "delete": "DELETE FROM queue_messages WHERE seq IN ({numbers})",
    "finish": """
        UPDATE queue_messages SET state = 'done', due = {now} + CAST(? AS DOUBLE PRECISION) WHERE seq IN ({numbers})
        """,
    "release": """
        UPDATE queue_messages SET state = 'ready', attempts = attempts - 1, token = token + 1 WHERE seq IN ({numbers})
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
            FROM ({texts}) AS ended
        )
        """,
    # Letters, and what is old
    "letters": """
        SELECT seq, id, body, context, priority, attempts, put, history FROM queue_messages
        WHERE queue = ? AND state = 'dead' AND seq > ? ORDER BY seq LIMIT ?
        """,
    "replay": """
        UPDATE queue_messages SET state = 'new', attempts = 0, due = put, token = token + 1
        WHERE queue = ? AND state = ? AND id IN ({texts})
        """,
    "drop": "DELETE FROM queue_messages WHERE queue = ? AND state = 'dead' AND id IN ({texts})",
    "purge_done": """
        DELETE FROM queue_messages WHERE seq IN (
            SELECT seq FROM queue_messages WHERE queue = ? AND state = 'done' AND due <= {now} ORDER BY due LIMIT ?)
        """,
    # The oldest are looked at only, since all are kept equally long.
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
def sql(dialect: Dialect, name: str) -> str:
    """A statement in the database's own words."""
    text = _STATEMENTS[name].replace("{seen}", _SEEN)
    for token, word in _WORDS[dialect].items():
        text = text.replace(token, word)
    return text

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
        "{numbers}": "SELECT value FROM json_each(?)",
        "{texts}": "SELECT value AS item FROM json_each(?)",
    },
    "postgres": {
        "{now}": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
        "{skip locked}": "FOR UPDATE SKIP LOCKED",
        "{numbers}": "SELECT CAST(json_array_elements_text(CAST(CAST(? AS TEXT) AS json)) AS BIGINT)",
        "{texts}": "SELECT json_array_elements_text(CAST(CAST(? AS TEXT) AS json)) AS item",
    },
}

_SEEN = """
    EXISTS (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'ready') AS ready,
    EXISTS (SELECT 1 FROM queue_messages WHERE queue = ? AND state = 'new') AS new,
    (SELECT MIN(due) FROM queue_messages WHERE queue = ? AND state = 'delayed') - {now} AS delayed,
    (SELECT MIN(due) FROM queue_messages WHERE queue = ? AND state = 'leased') - {now} AS leased
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
    "insert": """
        INSERT INTO queue_messages (queue, id, context, priority, state, due, put, body)
        VALUES (?, ?, ?, ?, ?, {now} + CAST(? AS DOUBLE PRECISION), {now}, ?)
        """,
    # The same in one statement, which PostgreSQL thanks with twice the speed; SQLite has no word for base64.
    "insert_all": """
        INSERT INTO queue_messages (id, queue, context, priority, state, due, put, body)
        SELECT one.id, ?, one.context, one.priority, one.state, {now} + one.delay, {now}, decode(one.body, 'base64')
        FROM json_to_recordset(CAST(CAST(? AS TEXT) AS json))
            AS one (id TEXT, context TEXT, priority BIGINT, state TEXT, delay DOUBLE PRECISION, body TEXT)
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
    # changed in any order, and SQLite shows it what is changed already: neither alters the answer.
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
            WHEN due > {now} THEN 'delayed'
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
        RETURNING seq, id, body, context, priority, attempts, token, {now} - put AS age
        """,
    "come_due": "UPDATE queue_messages SET state = 'ready' WHERE queue = ? AND state = 'delayed' AND due <= {now}",
    "expired": """
        SELECT seq, token, attempts, history, context FROM queue_messages
        WHERE queue = ? AND state = 'leased' AND due <= {now}
        """,
    # The end of a lease
    "held": """
        SELECT seq, token, attempts, history, context FROM queue_messages
        WHERE seq IN ({numbers}) AND queue = ? AND state = 'leased'
        """,
    "extend": """
        UPDATE queue_messages SET due = {now} + CAST(? AS DOUBLE PRECISION) WHERE seq = ? AND state = 'leased'
        """,
    "delete": "DELETE FROM queue_messages WHERE seq IN ({numbers})",
    "finish": """
        UPDATE queue_messages SET state = 'done', due = {now} + CAST(? AS DOUBLE PRECISION) WHERE seq IN ({numbers})
        """,
    "release": "UPDATE queue_messages SET state = 'ready', attempts = attempts - 1 WHERE seq IN ({numbers})",
    "retry": """
        UPDATE queue_messages SET state = ?, due = {now} + CAST(? AS DOUBLE PRECISION), history = ? WHERE seq = ?
        """,
    "promote": """
        UPDATE queue_messages SET state = CASE WHEN due > {now} THEN 'delayed' ELSE 'ready' END
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
        UPDATE queue_messages SET state = 'new', attempts = 0, due = {now}
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
    "purge_keys": """
        DELETE FROM queue_keys WHERE queue = ? AND key IN (
            SELECT key FROM queue_keys WHERE queue = ? AND expires <= {now} ORDER BY expires LIMIT ?)
        """,
    # No lease is as long as that: the clock was set back, and nobody can tell when it would have ended.
    "purge_leases": """
        UPDATE queue_messages SET due = {now}
        WHERE queue = ? AND state = 'leased' AND due > {now} + CAST(? AS DOUBLE PRECISION)
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

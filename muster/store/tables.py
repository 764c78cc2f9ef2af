"""The tables, as the newest migration leaves them. Times are seconds since the epoch, ids are UUIDs as text."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()
NOT_ENDED = text("state NOT IN ('TERMINATED', 'CANCELLED', 'ERROR')")

sessions = Table(
    "sessions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("owner", String(255), nullable=False),
    Column("resource_group", String(255), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("result", String(16)),
    Column("exit_code", Integer),
    Column("placed_mode", String(16)),
    Column("generation", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("retry_at", Float),
    Column("submitted_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("public_key", Text),
    Column("wait", JSON, nullable=False),
    Index("sessions_by_state", "state", "submitted_at"),
    Index("sessions_by_name", "name"),
    Index("one_active_session_of_a_name", "name", unique=True, sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED),
)

kernels = Table(
    "kernels",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("session_id", String(36), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("role", String(32), nullable=False),
    Column("index", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("slots", JSON, nullable=False),
    Column("shm", BigInteger, nullable=False),
    Column("image", String(1024), nullable=False),
    Column("command", Text),
    Column("allocation", JSON(none_as_null=True)),
    Column("container_id", String(64)),
    Column("container_state", String(16)),
    Column("address", String(64)),
    Column("ssh_port", Integer),
    Column("exit_code", Integer),
    Column("oom_killed", Boolean, nullable=False),
    Column("started_at", String(40)),
    Column("finished_at", String(40)),
    Index("kernels_by_session", "session_id", "rank"),
)

agents = Table(
    "agents",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("report", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("problem", Text, nullable=False),
    Column("observed_at", Float, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("session_id", String(36), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("at", Float, nullable=False),
    Column("from_state", String(16)),
    Column("to_state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Index("events_by_session", "session_id", "id"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

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
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
    true,
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
    Column("step", String(16)),
    Column("progress", JSON, nullable=False, server_default="{}"),
    Column("requeue_after_end", Boolean, nullable=False, server_default=false()),
    Column("requeues", Integer, nullable=False, server_default="0"),
    Column("project", String(255), nullable=False, server_default="default"),
    Column("held_by", String(255)),
    Column("array_id", String(36)),
    Column("array_name", String(63)),
    Column("array_index", Integer),
    Column("stranded_on", JSON, nullable=False, server_default="[]"),
    Column("failed_on", JSON, nullable=False, server_default="[]"),
    Column("wait_id", BigInteger),
    Column("folders", JSON, nullable=False, server_default="[]"),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("notice", Text),
    Column("warned_at", Float),
    Column("extended_s", BigInteger, nullable=False, server_default="0"),
    Column("given", Integer),
    Column("moved_for", String(36)),
    Column("signals", BigInteger, nullable=False, server_default="0"),
    Column("signalled_at", Float),
    Column("leaves_at", Float),
    Column("ends_for", Text),
    Column("updates", BigInteger, nullable=False, server_default="0"),
    Index("sessions_by_state", "state", "submitted_at"),
    Index("sessions_by_age", "submitted_at", "id"),
    Index("sessions_by_name", "name"),
    Index("sessions_by_owner", "owner", "state", "submitted_at"),
    Index("sessions_by_project", "project"),
    Index("sessions_by_array", "array_id", "array_index"),
    Index("sessions_by_array_name", "array_name"),
    Index("sessions_by_wait", "wait_id"),
    Index("sessions_by_revision", "revision"),
    Index("sessions_by_end", "ended_at"),
    # Where the locale is not C, a plain index does not serve LIKE 'start%'.
    Index("sessions_by_start_of_id", "id", postgresql_ops={"id": "varchar_pattern_ops"}).ddl_if(dialect="postgresql"),
    Index("one_active_session_of_a_name", "name", unique=True, sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED),
)

waits = Table(
    "waits",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("wait", JSON, nullable=False),
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
    Column("gpu_problem", Text),
    Column("boot_id", Text),
    Column("agent_generation", BigInteger),
    Column("signals", BigInteger, nullable=False, server_default="0"),
    Column("signal_receivers", BigInteger, nullable=False, server_default="0"),
    Index("kernels_by_session", "session_id", "rank"),
)

kernel_uses = Table(
    "kernel_uses",
    metadata,
    Column("kernel_id", String(36), primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("session_id", String(36), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("began_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("at", Float, nullable=False),
    Column("cpu_seconds", Float),
    Column("mem_bytes", BigInteger),
    Column("mem_peak_bytes", BigInteger),
    Column("net_rx_bytes", BigInteger),
    Column("net_tx_bytes", BigInteger),
    Column("gpu_seconds", Float),
    Column("gpu_percent", Float),
    Column("cpu_cores", Float),
    Column("net_bytes_per_s", Float),
    Column("idle_since", Float),
    Index("kernel_uses_by_session", "session_id"),
)

usage_steps = Table(
    "usage_steps",
    metadata,
    Column("kernel_id", String(36), primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("begins_at", BigInteger, primary_key=True, autoincrement=False),
    Column("session_id", String(36), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    *(
        column
        for what in ("cpu", "mem", "gpu")
        for column in (Column(what, Float, nullable=False), Column(f"{what}_known", Integer, nullable=False))
    ),
    Index("usage_steps_by_session", "session_id"),
    Index("usage_steps_by_time", "begins_at"),
)

agents = Table(
    "agents",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("report", JSON, nullable=False),
    Column("inventory", JSON, nullable=False, server_default="{}"),
    Column("state", String(16), nullable=False),
    Column("problem", Text, nullable=False),
    Column("observed_at", Float, nullable=False),
    Column("unreachable_since", Float),
    Column("drain_reason", Text),
    Column("silence_counts_from", Float),
    Column("reached", Boolean, nullable=False, server_default=true()),
    Column("launch_record", JSON, nullable=False, server_default="{}"),
    Column("gpu_record", JSON, nullable=False, server_default="{}"),
    Column("gpu_accepted", JSON, nullable=False, server_default="{}"),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Index("agents_by_revision", "revision"),
)

# What people said of agents that have left the inventory.
left_agents = Table(
    "left_agents",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("drain_reason", Text),
    Column("gpu_accepted", JSON, nullable=False),
)

# Sums over the samples of an agent in `span_s` seconds. Not all samples have a usage.
agent_samples = Table(
    "agent_samples",
    metadata,
    Column("agent_id", String(255), primary_key=True),
    Column("span_s", Integer, primary_key=True, autoincrement=False),
    Column("begins_at", BigInteger, primary_key=True, autoincrement=False),
    Column("resource_group", String(255), nullable=False),
    Column("samples", Integer, nullable=False),
    *(
        Column(f"{what}_{part}", Float, nullable=False)
        for what in ("cpu", "mem", "gpu", "gpu_mem")
        for part in ("capacity", "allocated", "used")
    ),
    *(Column(f"{what}_known", Integer, nullable=False) for what in ("cpu", "mem", "gpu", "gpu_mem")),
    Index("agent_samples_by_time", "span_s", "begins_at"),
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

logs = Table(
    "logs",
    metadata,
    Column("session_id", String(36), ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("kernel_name", String(64), primary_key=True),
    Column("gz", LargeBinary, nullable=False),
)

reservations = Table(
    "reservations",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("begins_at", Float, nullable=False),
    Column("ends_at", Float, nullable=False),
    Column("resource_group", String(255)),
    Column("agents", JSON, nullable=False),
    Column("users", JSON, nullable=False),
    Column("projects", JSON, nullable=False),
    Column("reason", Text, nullable=False),
)

secrets = Table(
    "secrets",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("key_id", String(16), nullable=False),
    Column("changed_at", Float, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("event_id", BigInteger, primary_key=True, autoincrement=False),
    Column("target", String(255), primary_key=True),
    Column("session_id", String(36), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", Float, nullable=False),
    Index("deliveries_by_session", "session_id", "target", "event_id"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("user", String(255), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("last_used_at", Float),
    Column("projects", JSON, nullable=False, server_default="[]"),
    Index("tokens_by_hash", "hash", unique=True),
)

sign_ins = Table(
    "sign_ins",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("token_name", String(63), ForeignKey("tokens.name", ondelete="CASCADE"), nullable=False, index=True),
    Column("expires_at", Float, nullable=False),
)

submissions = Table(
    "submissions",
    metadata,
    Column("caller", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("request_hash", String(64), nullable=False),
    Column("session_ids", JSON, nullable=False),
    Column("at", Float, nullable=False),
    Index("submissions_by_age", "at"),
)

folders = Table(
    "folders",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("name", String(63), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("quota_bytes", BigInteger),
    Column("removed_at", Float),
    Column("left_on", JSON, nullable=False),
    Index("one_folder_of_a_name", "owner", "name", unique=True),
)

folder_shares = Table(
    "folder_shares",
    metadata,
    Column("folder_id", String(36), ForeignKey("folders.id", ondelete="CASCADE"), primary_key=True),
    Column("grantee", String(255), primary_key=True),
    Column("read_only", Boolean, nullable=False),
    Index("folder_shares_by_grantee", "grantee"),
)

images = Table(
    "images",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("tag", String(128), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("public", Boolean, nullable=False),
    Column("message", Text, nullable=False),
    Column("parent", String(1024), nullable=False),
    Column("parent_id", String(80), nullable=False),
    # No foreign key: the image outlives the session.
    Column("session_id", String(36), nullable=False),
    Column("session_name", String(63), nullable=False),
    Column("kernel_name", String(64), nullable=False),
    Column("agent_id", String(255), nullable=False),
    Column("architecture", String(32), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("image_id", String(80), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    # While it is being made: when its maker last said that they are at it.
    Column("touched_at", Float, nullable=False, server_default="0"),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("at", Float, nullable=False),
    Column("worker", String(63), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
)

limit_overrides = Table(
    "limit_overrides",
    metadata,
    Column("limited", String(32), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("running", JSON, nullable=False),
    Column("pending", JSON, nullable=False),
    Column("changed_by", String(255), nullable=False),
    Column("changed_at", Float, nullable=False),
)

weight_overrides = Table(
    "weight_overrides",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("weight", Float, nullable=False),
    Column("changed_by", String(255), nullable=False),
    Column("changed_at", Float, nullable=False),
)

presets = Table(
    "presets",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("spec", JSON, nullable=False),
    Column("changed_at", Float, nullable=False),
)

owner_uids = Table(
    "owner_uids",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("uid", BigInteger, nullable=False),
    Index("one_owner_of_a_uid", "uid", unique=True),
)

pulled_images = Table(
    "pulled_images",
    metadata,
    Column("agent_id", String(255), primary_key=True),
    Column("reference", Text, primary_key=True),
    Column("image_id", String(80), nullable=False),
    Column("needed_at", Float, nullable=False),
    Column("removed_at", Float),
)

image_ids = Table(
    "image_ids",
    metadata,
    Column("image_id", String(80), primary_key=True),
    Column("config_id", String(80), nullable=False),
)

counters = Table(
    "counters",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

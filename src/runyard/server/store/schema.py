"""The tables, as numbered steps that both databases take.

A row is one MessagePack struct in `row`, beside it only the columns that a statement looks for: a struct may grow a
field without a step here, and a reader of the last release ignores it. A step is applied once, in order, in one
transaction. Steps expand in one release and contract two releases later, so a binary of the last release works on the
schema of this one and the reverse.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

DIALECT_WORDS: Final[dict[str, dict[str, str]]] = {
    "sqlite": {"bytes": "BLOB", "big": "INTEGER", "wide": "WITHOUT ROWID"},
    "postgresql": {"bytes": "BYTEA", "big": "BIGINT", "wide": ""},
}


class Step(NamedTuple):
    """One change of the schema. `compatible_with` is the oldest step whose binary still works once this is applied."""

    number: int
    name: str
    kind: Literal["expand", "contract"]
    compatible_with: int
    script: str
    """Statements, each ended by a semicolon at the end of its line."""


_FIRST: Final = """
CREATE TABLE counters (name TEXT PRIMARY KEY, value {big} NOT NULL) {wide};
CREATE TABLE blobs (digest TEXT PRIMARY KEY, data {bytes} NOT NULL);
CREATE TABLE projects (repository TEXT PRIMARY KEY, row {bytes} NOT NULL);
CREATE TABLE triggers (key TEXT PRIMARY KEY, row {bytes} NOT NULL);
CREATE TABLE runs (id TEXT PRIMARY KEY,
    number {big} NOT NULL,
    attempt {big} NOT NULL,
    repository TEXT NOT NULL,
    phase TEXT NOT NULL,
    version {big} NOT NULL,
    state {bytes} NOT NULL,
    row {bytes} NOT NULL);
CREATE UNIQUE INDEX runs_number ON runs (number, attempt);
CREATE INDEX runs_repository ON runs (repository, number);
CREATE INDEX runs_open ON runs (number) WHERE phase <> 'done';
CREATE TABLE run_groups (repository TEXT NOT NULL,
    name TEXT NOT NULL,
    row {bytes} NOT NULL,
    PRIMARY KEY (repository,
    name)) {wide};
CREATE TABLE jobs (id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    sequence {big} NOT NULL,
    repository TEXT NOT NULL,
    class_id TEXT NOT NULL,
    rank {big} NOT NULL,
    phase TEXT NOT NULL,
    holds TEXT NOT NULL,
    due_ns {big} NOT NULL,
    attempt {big} NOT NULL,
    lease TEXT NOT NULL,
    order_number {big} NOT NULL,
    worker TEXT NOT NULL,
    pool TEXT NOT NULL,
    bound TEXT NOT NULL,
    reserved_for TEXT NOT NULL,
    row {bytes} NOT NULL);
CREATE INDEX jobs_run ON jobs (run_id, sequence);
CREATE UNIQUE INDEX jobs_key ON jobs (run_id, key);
CREATE INDEX jobs_queued ON jobs (class_id, rank, sequence) WHERE phase = 'queued';
CREATE INDEX jobs_reserved ON jobs (reserved_for, class_id, rank, sequence) WHERE phase = 'reserved';
CREATE INDEX jobs_due ON jobs (due_ns) WHERE due_ns > 0;
CREATE INDEX jobs_open ON jobs (phase, sequence) WHERE phase <> 'done';
CREATE INDEX jobs_live ON jobs (worker) WHERE phase IN ('leased', 'running', 'cancelling');
CREATE TABLE job_bodies (job TEXT PRIMARY KEY, row {bytes} NOT NULL);
CREATE TABLE job_classes (id TEXT PRIMARY KEY, row {bytes} NOT NULL);
CREATE TABLE strides (repository TEXT PRIMARY KEY, row {bytes} NOT NULL) {wide};
CREATE TABLE attempts (job TEXT NOT NULL,
    number {big} NOT NULL,
    worker TEXT NOT NULL,
    claim TEXT NOT NULL,
    row {bytes} NOT NULL,
    PRIMARY KEY (job,
    number));
CREATE UNIQUE INDEX attempts_claim ON attempts (worker, claim);
CREATE TABLE events (job TEXT NOT NULL,
    attempt {big} NOT NULL,
    number {big} NOT NULL,
    event {bytes} NOT NULL,
    PRIMARY KEY (job,
    attempt,
    number));
CREATE TABLE orders (job TEXT NOT NULL,
    attempt {big} NOT NULL,
    number {big} NOT NULL,
    row {bytes} NOT NULL,
    PRIMARY KEY (job,
    attempt,
    number));
CREATE TABLE results (job TEXT PRIMARY KEY, row {bytes} NOT NULL);
CREATE TABLE masks (job TEXT NOT NULL,
    attempt {big} NOT NULL,
    row {bytes} NOT NULL,
    PRIMARY KEY (job,
    attempt));
CREATE TABLE workers (id TEXT PRIMARY KEY, name TEXT NOT NULL, seen_ns {big} NOT NULL, row {bytes} NOT NULL);
CREATE INDEX workers_seen ON workers (seen_ns);
CREATE TABLE tokens (id TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    created_ns {big} NOT NULL,
    used_ns {big} NOT NULL,
    row {bytes} NOT NULL);
CREATE TABLE audit (sequence {big} PRIMARY KEY, row {bytes} NOT NULL);
"""

_VAULT: Final = """
CREATE TABLE secrets (
    repository TEXT NOT NULL, environment TEXT NOT NULL, name TEXT NOT NULL, row {bytes} NOT NULL,
    PRIMARY KEY (repository, environment, name)
);
CREATE TABLE vaults (repository TEXT PRIMARY KEY, row {bytes} NOT NULL);
"""

STEPS: Final = (
    Step(1, "the control plane", "expand", 1, _FIRST),
    Step(2, "secrets of repositories", "expand", 1, _VAULT),
)

LATEST: Final = STEPS[-1].number
OLDEST_READ: Final = 1
"""The oldest schema that this binary works on."""

VERSION_TABLE: Final = """
CREATE TABLE IF NOT EXISTS schema_steps (
    number {big} PRIMARY KEY, name TEXT NOT NULL, compatible_with {big} NOT NULL, applied_ns {big} NOT NULL
);
"""


def said_for(dialect: str, script: str) -> list[str]:
    """The statements of a script in the words of one database."""
    said = script.format(**DIALECT_WORDS[dialect])
    return [statement.strip() for statement in said.split(";\n") if statement.strip()]

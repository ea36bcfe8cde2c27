"""Every option of Apache Hudi 1.2 and of lockkit, and what becomes of it here.

One entry of `TABLE` for some keys that have a prefix and a fate in common. A key that ends in `*`
stands for all keys that begin so. `values` says what an option may be: `flag`, `whole`, `number`,
`text`, or the values themselves. `gate` carries this out, and prints it as docs/options.md.

`obeyed`: it does what Hudi's documentation says. `harmless`: rows, conflicts and readers are the
same with it and without it; it tunes a part of Hudi's engine that is not here. `refused`: without
it rows, guarantees or other systems would be otherwise than asked for. A refused option may have
`values` that are accepted, because they ask for nothing else than what is done anyway.

One file because it is one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lockkit.lock import hudi_keys as lock
from lockkit.table.format.property_keys import KEY_CLASSES

Fate = Literal["obeyed", "harmless", "refused"]


@dataclass(frozen=True, slots=True)
class OptionRule:
    """Options that are treated alike; `names` follow `prefix`."""

    fate: Fate
    prefix: str
    names: str
    values: str
    why: str
    reader: bool = False
    """It is an option of reads. In a write it is harmless, as those of writes are in a read."""

    @property
    def keys(self) -> list[str]:
        return [f"{self.prefix}{name}" for name in self.names.split()]


def _obeyed(prefix: str, names: str, values: str, why: str, *, reader: bool = False) -> OptionRule:
    return OptionRule("obeyed", prefix, names, values, why, reader)


def _harmless(prefix: str, names: str, why: str, *, reader: bool = False) -> OptionRule:
    return OptionRule("harmless", prefix, names, "", why, reader)


def _refused(
    prefix: str, names: str, why: str, accepted: str = "", *, reader: bool = False
) -> OptionRule:
    return OptionRule("refused", prefix, names, accepted, why, reader)


H, W = "hoodie.", "hoodie.datasource.write."
PARQUET = "a codec other than snappy is not written here"
METADATA = "it tunes the metadata table, which lockkit does not keep"
ENGINE = "it tunes Hudi's own engine"
LOG = ("it tunes which log files Hudi compacts first; a compaction here takes every file group "
       "that has some")
READS = "it tunes Hudi's reader"
PROPERTY = "it is a property that a table keeps for itself; leave it out"
CODE = "a class of Java cannot be run here"
KEYS = "this key generator makes keys that do not match lockkit's"
_KEY_TYPES, _KEY_CLASSES = "|".join(KEY_CLASSES), "|".join(KEY_CLASSES.values())
_PAYLOADS = (
    "org.apache.hudi.common.model.DefaultHoodieRecordPayload|"
    "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
)
_STRATEGIES = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5|ce9acb64-bde0-424c-9b91-f6ebba25356d"
MODES = "EVENT_TIME_ORDERING|COMMIT_TIME_ORDERING"

TABLE: tuple[OptionRule, ...] = (
    # --- what a write does, and what the table is ---
    _obeyed(W, "operation",
            "upsert|insert|bulk_insert|delete|insert_overwrite|insert_overwrite_table|"
            "delete_partition", "what the write does"),
    _obeyed(W, "partitions.to.delete", "text", "what delete_partition deletes: paths of "
            "partitions, separated by commas, where `*` stands for any text; by default the "
            "partitions that the rows have"),
    _obeyed(W, "recordkey.field partitionpath.field precombine.field table.name", "text",
            "the record key's column and the partition's, or several, separated by commas; one "
            "precombine column; the table's name. A table that exists must have the same"),
    _obeyed(H + "table.",
            "name recordkey.fields partition.fields precombine.field ordering.fields", "text",
            "as above, by the names that the table's own properties have"),
    _obeyed(H, "base.path", "text", "the table's URL, which must be that of the write"),
    _obeyed(H, "write.table.version", "6|9", "the version of a new table"),
    _obeyed("lockkit.", "commit.mode", "fenced|hudi", "who decides on commits to a new table"),
    _obeyed(H, "bucket.index.num.buckets", "whole",
            "lockkit's buckets in each partition of a new table"),
    _obeyed(W, "hive_style_partitioning partitionpath.urlencode", "flag",
            "the names of a new table's partition folders; a table that exists must agree"),
    _obeyed(W, "insert.drop.duplicates", "flag",
            "rows whose key the table has are not inserted again"),
    _obeyed(H, "combine.before.insert allow.empty.commit", "flag", "as Hudi documents"),
    _obeyed(H, "parquet.max.file.size", "whole", "about how long a base file gets, in bytes"),
    _obeyed(H, "upsert.shuffle.parallelism", "whole", "how many tasks merge"),
    _refused(H, "combine.before.upsert combine.before.delete",
             "one key would be written twice", "true"),
    _refused(H, "merge.allow.duplicate.on.inserts", "an insert of a key that is there adds a row "
             "(hoodie.datasource.write.insert.drop.duplicates=true keeps it out)", "true"),
    _refused(W, "table.type storage.type", "base files alone would hide the rows of log files",
             "COPY_ON_WRITE"),
    _refused(H + "table.", "type", "base files alone would hide the rows of log files",
             "COPY_ON_WRITE"),
    _refused(W, "drop.partition.columns slash.separated.date.partitioning",
             "partitions are laid out otherwise here", "false"),
    _refused(H + "datasource.", "insert.dup.policy", "use " + W + "insert.drop.duplicates", "none"),
    _refused(H + "datasource.", "overwrite.mode",
             "say it by " + W + "operation=insert_overwrite or insert_overwrite_table"),
    _refused(H, "static.overwrite.partition.paths", "insert_overwrite takes the partitions of the "
             "rows that are written"),
    _refused(H, "sql.insert.mode spark.sql.insert.into.operation sql.bulk.insert.enable "
             "bulkinsert.overwrite.operation.type", "say it by " + W + "operation"),
    # --- keys, merging ---
    _refused(W, "keygenerator.class", KEYS, _KEY_CLASSES),
    _refused(H + "table.", "keygenerator.class", KEYS, _KEY_CLASSES),
    _refused(W, "keygenerator.type", KEYS, _KEY_TYPES),
    _refused(H + "table.", "keygenerator.type", KEYS, _KEY_TYPES),
    _obeyed(H, "write.complex.keygen.new.encoding", "flag", "true is refused where it would change "
            "keys: version 6, ComplexKeyGenerator and one record key"),
    _refused(H + "table.", "complex.keygen.encoding",
             "keys of one field would be spelt otherwise than here", "FIELD_PREFIXED"),
    _refused(W, "keygenerator.consistent.logical.timestamp.enabled secondarykey.column",
             "keys would be spelt otherwise than here", "false"),
    _refused(H, "keygen.timebased.* keygen.datetime.parser.class deltastreamer.keygen.*",
             "partitions by time are not made of other columns here; add a column"),
    _refused(W, "payload.class", "rows would be merged otherwise than here", _PAYLOADS),
    _refused(H, "compaction.payload.class table.legacy.payload.class",
             "rows would be merged otherwise than here", _PAYLOADS),
    _refused(H, "record.merge.mode write.record.merge.mode",
             "rows would be merged otherwise than here", MODES),
    _refused(H, "record.merge.strategy.id write.record.merge.strategy.id "
             "compaction.record.merger.strategy datasource.write.record.merger.strategy",
             "rows would be merged otherwise than here", _STRATEGIES),
    _refused(H, "write.record.merge.custom.implementation.classes write.merge.handle.class "
             "write.concat.handle.class compact.merge.handle.class client.init.callback.classes "
             "datasource.write.record.merger.impls record.merge.property.*", CODE),
    _refused(H, "write.partial.update.schema table.partial.update.mode "
             "write.partial.update.unavailable.value", "rows are written whole here", "NONE"),
    # --- indexes ---
    _refused(H + "index.", "type",
             "upserts find a key in its own partition, by lockkit's buckets; a global index would "
             "move rows between partitions, and Hudi's own buckets and record index have files of "
             "their own; leave it out", "SIMPLE|BLOOM|INMEMORY"),
    _refused(H + "index.", "class", CODE),
    _refused(H + "index.", "bucket.engine", "lockkit's buckets have a fixed number", "SIMPLE"),
    _refused(H + "bucket.index.", "hash.field min.num.buckets max.num.buckets "
             "partition.expressions partition.rule.type",
             "lockkit's buckets are made of the record key, the same number in each partition"),
    _harmless(H + "bucket.index.", "merge.threshold split.threshold query.pruning "
              "remote.partitioner.enable", ENGINE),
    _harmless(H, "bloom.index.update.partition.path simple.index.update.partition.path "
              "record.index.update.partition.path", "it is about global indexes, and "
              "hoodie.index.type refuses those"),
    _harmless(H, "bloom.index.* simple.index.* record.index.* global.simple.index.parallelism "
              "global.index.reconcile.parallelism index.bloom.fpp index.bloom.num_entries "
              "parquet.bloom.filter.enabled", "keys are found exactly, without Hudi's indexes"),
    _refused(H, "index.name expression.index.* table.index.defs.path "
             "table.secondary.indexes.metadata", "no secondary index is kept here"),
    # --- concurrency and locks ---
    _obeyed(H + "write.", "concurrency.mode", "single_writer|optimistic_concurrency_control",
            "by default optimistic_concurrency_control"),
    _obeyed(H + "write.", "num.retries.on.conflict.failures", "whole",
            "how often a write that met a conflict begins anew"),
    _obeyed(H + "write.concurrency.early.conflict.",
            "detection.enable check.commit.conflict", "flag",
            "a write looks for conflicts before it commits"),
    _obeyed(H + "write.concurrency.early.conflict.", "detection.strategy", "text",
            "only the strategy that reads markers directly"),
    _obeyed("", lock.PROVIDER, "text", "the lock that guards the commits"),
    _obeyed("", lock.STRATEGY, "text", "Hudi's two strategies, by class or name"),
    _obeyed("", " ".join(lock.WAITING), "number",
            "how long a commit waits for its lock. Without a provider and without retries, one "
            "try of wait_time_ms; with a provider, as long as Hudi's LockManager"),
    _harmless("", " ".join(lock.PROVIDERS_OWN),
              "an unanswered request is sent again until the wait is over; its value is checked"),
    _obeyed("", " ".join(lock.LEASE), "number", "the length of a lease and its renewal"),
    _obeyed("", lock.SAS_TOKEN, "text", "the credential of the storage lock on Azure"),
    _refused("", " ".join(lock.AZURE_LOGINS), "log in by the Azure SDK's own environment "
             "variables (AZURE_STORAGE_CONNECTION_STRING, AZURE_CLIENT_ID, ...)"),
    _obeyed("", " ".join(lock.PLACES), "text", "where the provider's lock is"),
    _obeyed("", " ".join(lock.PROVIDERS_NUMBERS), "number", "as Hudi documents"),
    _obeyed("", " ".join(lock.AWS_KEYS), "text",
            "the credentials of the storage lock on S3 and of the DynamoDB lock"),
    _refused("", " ".join(lock.AWS_ROLE), "a role is assumed by a profile of ~/.aws/config"),
    _harmless(lock.AWS_CATALOG, "*", "no catalog is kept up to date here"),
    _obeyed(H + "client.heartbeat.", "interval_in_ms tolerable.misses", "whole",
            "when a writer counts as dead"),
    _harmless(H, "auto.adjust.lock.configs write.concurrency.async.conflict.detector.* "
              "write.concurrency.schema.conflict.resolution.enable write.markers.type "
              "markers.delete.parallelism markers.timeline_server_based.* rollback.parallelism "
              "rollback.using.markers rollback.avoid.duplicate.plan rollback.instant.backup.dir "
              "finalize.write.parallelism time.generator.max_expected_clock_skew_ms "
              "time.generator.type", ENGINE),
    _refused(H, "rollback.instant.backup.enabled", "no copy of an instant is kept", "false"),
    _refused("_.", "hoodie.allow.multi.write.on.same.instant", "an instant has one writer",
             "false"),
    _harmless("_hoodie.", "metadata.ignore.spurious.deletes optimistic.consistency.guard.enable "
              "record.size.estimator.max.commits time.generator.reuse.enable", ENGINE),
    # --- table services ---
    _obeyed(H + "clean.", "automatic async.enabled async", "flag", "whether old files are cleaned"),
    _obeyed(H + "clean.", "policy", "text", "which snapshots keep their files"),
    _obeyed(H + "clean.", "commits.retained hours.retained fileversions.retained "
            "trigger.max.commits max.commits", "whole", "which snapshots keep their files"),
    _obeyed(H + "clean.", "failed.writes.policy", "EAGER|LAZY|NEVER",
            "who rolls dead writers back"),
    _obeyed(H + "cleaner.", "policy", "text", "the older name of hoodie.clean.policy"),
    _obeyed(H + "cleaner.", "policy.failed.writes", "EAGER|LAZY|NEVER",
            "the older name of hoodie.clean.failed.writes.policy"),
    _obeyed(H + "cleaner.", "commits.retained hours.retained fileversions.retained", "whole",
            "older names of the same under hoodie.clean."),
    _refused(H + "clean.", "trigger.strategy", "a clean is due after so many commits",
             "NUM_COMMITS"),
    _refused(H, "clean.partition.filter.regex clean.partition.filter.selected "
             "cleaner.partition.filter.regex cleaner.partition.filter.selected",
             "other partitions would be cleaned too"),
    _refused(H, "clean.delete.bootstrap.base.file cleaner.delete.bootstrap.base.file",
             "bootstrapped tables are not written here", "false"),
    _refused(H, "prewrite.cleaner.policy", "nothing is cleaned before a write", "NONE"),
    _harmless(H, "clean.incremental.enabled cleaner.incremental.mode clean.max.commits.to.clean "
              "clean.multiple.enabled clean.allow.multiple clean.parallelism cleaner.parallelism "
              "clean.optimize.using.local.engine.context write.empty.clean.interval.hours", ENGINE),
    _obeyed(H + "clustering.", "inline async.enabled", "flag", "whether small files are clustered"),
    _obeyed(H + "clustering.", "inline.max.commits async.max.commits", "whole",
            "after how many commits"),
    _obeyed(H + "clustering.plan.strategy.", "small.file.limit target.file.max.bytes "
            "max.bytes.per.group max.num.groups", "whole", "which files are rewritten together"),
    _obeyed(H + "clustering.plan.strategy.", "partition.selected", "text",
            "only these partitions, separated by commas"),
    _obeyed("lockkit.", "clustering.layout", "free|bucketed", "what is made of the small files"),
    _refused(H + "datasource.", "clustering.async.enable clustering.inline.enable",
             "write hoodie.clustering.async.enabled or hoodie.clustering.inline", "false"),
    _refused(H + "clustering.", "plan.strategy.sort.columns plan.strategy.class "
             "execution.strategy.class updates.strategy",
             "files are joined without sorting, and a writer goes before a clustering as "
             f"{lock.STRATEGY} says"),
    _refused(H + "clustering.", "plan.partition.filter.mode", "name the partitions in "
             "hoodie.clustering.plan.strategy.partition.selected", "NONE"),
    _refused(H + "clustering.plan.strategy.", "partition.regex.pattern cluster.begin.partition "
             "cluster.end.partition earliest.commit.to.cluster",
             "name the partitions in hoodie.clustering.plan.strategy.partition.selected"),
    _refused(H + "clustering.", "schedule.inline", "a plan is carried out by who makes it",
             "false"),
    _harmless(H + "clustering.", "max.parallelism group.read.parallelism enable.expirations "
              "expiration.threshold.mins rollback.pending.replacecommit.on.conflict "
              "fail.on.pending.ingestion.during.conflict.resolution "
              "plan.generation.use.local.engine.context "
              "plan.strategy.binary.copy.schema.evolution.enable "
              "plan.strategy.daybased.lookback.partitions "
              "plan.strategy.daybased.skipfromlatest.partitions plan.strategy.file.slices.sort.by "
              "plan.strategy.single.group.clustering.enabled", ENGINE),
    _refused(H + "layout.optimize.", "enable", "files are joined without sorting", "false"),
    _harmless(H + "layout.optimize.", "strategy build.curve.sample.size curve.build.method "
              "data.skipping.enable", "files are joined without sorting"),
    _obeyed(H, "compact.inline datasource.compaction.async.enable", "flag", "whether a "
            "merge-on-read table is compacted: after a commit, or in a thread beside the writer; "
            "by default neither"),
    _obeyed(H + "compact.inline.", "max.delta.commits", "whole",
            "after how many commits that added log files; by default 5"),
    _refused(H + "compact.inline.", "trigger.strategy", "a compaction is due after so many commits",
             "NUM_COMMITS|NUM_COMMITS_AFTER_LAST_REQUEST"),
    _refused(H, "compact.schedule.inline", "a plan is carried out by who makes it", "false"),
    _refused(H, "log.compaction.enable log.compaction.inline",
             "log files are not joined to larger ones, they are compacted", "false"),
    _harmless(H, "compact.inline.max.delta.seconds "
              "compaction.daybased.target.partitions compaction.lazy.block.read "
              "compaction.logfile.num.threshold compaction.logfile.size.threshold "
              "compaction.partition.path.regex compaction.plan.generator "
              "compaction.reverse.log.read compaction.strategy compaction.target.io "
              "log.compaction.blocks.threshold logfile.data.block.format "
              "logfile.data.block.max.size logfile.max.size logfile.to.parquet.compression.ratio "
              "datasource.write.streaming.disable.compaction", LOG),
    _refused(H, "archive.beyond.savepoint archive.async", "no instant is archived here", "false"),
    _harmless(H, "archive.automatic archive.block.on.latest.clean.ectr archive.delete.parallelism "
              "keep.max.commits keep.min.commits commits.archival.batch fail.on.timeline.archiving "
              "timeline.compaction.batch.size timeline.compaction.target.file.max.bytes "
              "timeline.manifest.retained.versions",
              "no instant is archived here, so that more of them stay than asked for"),
    _refused(H, "partition.ttl.inline", "no partition is deleted by its age here", "false"),
    _harmless(H, "partition.ttl.management.strategy.type partition.ttl.strategy.*",
              "no partition is deleted by its age here"),
    _refused(H, "table.service.manager.enabled metadata.table.service.manager.enabled",
             "services run in the writer, beside it, or by `lockkit table services`", "false"),
    _harmless(H, "table.service.manager.* metadata.table.service.manager.actions "
              "table.services.incremental.enabled fail.writes.on.inline.table.service.exception "
              "write.can.ignore.post.commit.failures post.commit.failures.ignored",
              "a service that fails after a commit is warned of, and runs again later"),
    _obeyed(H, "table.services.enabled", "flag", "whether this writer runs any service "
            "(default true): cleaning, clustering, and rollback of the dead writers it meets"),
    # --- the metadata table, change logs, catalogs, callbacks ---
    _refused(H + "metadata.", "enable",
             "a commit that skips the metadata table is invisible to its readers, and lockkit "
             "does not keep one; set it to false in every writer", "false"),
    _refused(H + "metadata.", "bloom.filter.enable global.record.level.index.enable "
             "record.index.enable record.level.index.enable index.bloom.filter.enable "
             "index.column.stats.enable index.expression.enable index.partition.stats.enable "
             "index.secondary.enable index.async streaming.write.enabled metrics.enable "
             "log.compaction.enable", "lockkit does not keep a metadata table", "false"),
    _refused(H + "metadata.", "index.drop index.expression.column index.expression.options "
             "index.secondary.column", "lockkit does not keep a metadata table"),
    _harmless(H + "metadata.", "auto.delete.partitions auto.initialize "
              "bloom.filter.dynamic.max.entries bloom.filter.fpp bloom.filter.num.entries "
              "bloom.filter.type compact.max.delta.commits compact.max.delta.seconds "
              "compact.trigger.strategy derive.from.datatable.clean.policy dir.filter.regex "
              "fallback.enable file.cache.max.size.mb "
              "global.record.level.index.max.filegroup.count "
              "global.record.level.index.min.filegroup.count record.index.max.filegroup.count "
              "record.index.min.filegroup.count index.bloom.filter.column.list "
              "index.bloom.filter.file.group.count index.bloom.filter.parallelism "
              "index.check.timeout.seconds index.column.stats.column.list "
              "index.column.stats.file.group.count "
              "index.column.stats.inMemory.projection.threshold "
              "index.column.stats.max.columns.to.index index.column.stats.parallelism "
              "index.column.stats.processing.mode.override index.expression.file.group.count "
              "index.expression.parallelism index.partition.stats.file.group.count "
              "index.partition.stats.parallelism index.secondary.parallelism "
              "log.compaction.blocks.threshold max.deltacommits.when_pending max.init.parallelism "
              "max.logfile.size max.reader.buffer.size max.reader.memory "
              "optimized.log.blocks.scan.enable range.repartition.random.seed "
              "range.repartition.sampling.fraction "
              "range.repartition.target.records.per.partition "
              "record.index.enable.validation.on.initialization record.index.growth.factor "
              "record.index.max.filegroup.size record.level.index.defer.init "
              "record.level.index.max.filegroup.count record.level.index.min.filegroup.count "
              "partitioned.record.index.max.filegroup.count "
              "partitioned.record.index.min.filegroup.count record.preparation.parallelism "
              "repartition.default.partitions repartition.min.partitions.threshold "
              "spillable.map.path "
              "streaming.write.datatable.write.statuses.coalesce.divisor "
              "write.concurrency.mode write.fail.on.table.service.failures", METADATA),
    _refused(H + "table.", "cdc.enabled", "change logs are not written here", "false"),
    _harmless(H, "table.cdc.supplemental.logging.mode cdc.file.group.iterator.memory.spill.bytes",
              "change logs are not written here"),
    _refused(H + "datasource.", "hive_sync.enable meta.sync.enable meta_sync.condition.sync",
             "no catalog is kept up to date here; run Hudi's sync tool after the write", "false"),
    _harmless(H, "datasource.hive_sync.* datasource.meta.sync.base.path meta.sync.* meta_sync.* "
              "datasource.partition_extractor_class table.partition_extractor_class",
              "no catalog is kept up to date here"),
    _refused(H, "metrics.on metrics.executor.enable metrics.lock.enable "
             "metricscompaction.log.blocks.on",
             "no metrics are sent from here; pass emit= to see what happens", "false"),
    _harmless(H, "metrics.*", "no metrics are sent from here"),
    _refused(H, "write.commit.callback.on", "lockkit calls nothing after a commit; pass emit=",
             "false"),
    _harmless(H, "write.commit.callback.*", "lockkit calls nothing after a commit"),
    _refused(H, "precommit.validators prewrite.validators", CODE),
    _harmless(H, "precommit.validators.*", "no validators run here"),
    _refused(H, "errortable.enable", "a row that cannot be written fails the write", "false"),
    _harmless(H, "errortable.*", "a row that cannot be written fails the write"),
    _refused(H, "metaserver.enabled", "no metaserver is asked here", "false"),
    _harmless(H, "metaserver.*", "no metaserver is asked here"),
    _refused(H, "bootstrap.base.path bootstrap.data.queries.only",
             "a bootstrapped table keeps columns elsewhere, and is not written here", "false"),
    _harmless(H, "bootstrap.*", "bootstrapped tables are not made here"),
    # --- schemas ---
    _refused(H, "write.schema avro.schema internal.schema bulkinsert.schema.ddl",
             "the schema is that of the rows, widened to the table's; cast the rows"),
    _refused(H, "schema.on.read.enable", "a column's type and name stay as they are", "false"),
    _refused(W, "schema.allow.auto.evolution.column.drop",
             "a column that the rows do not have stays, and is null in them", "false"),
    _harmless(H, "datasource.write.reconcile.schema write.set.null.for.missing.columns "
              "avro.schema.validate avro.schema.external.transformation "
              "avro.schema.externalTransformation skip.default.partition.validation",
              "rows are always fitted to the table's schema: missing columns are null, new ones "
              "are added, and a type that would change is refused"),
    _refused(H, "allow.operation.metadata.field write.track.event.time.watermark "
             "write.rolling.metadata.keys", "such metadata is not written here", "false"),
    _harmless(H, "write.rolling.metadata.timeline.lookback.commits", ENGINE),
    # --- what a table keeps for itself ---
    _refused(H, "archivelog.folder database.name table.checksum table.create.schema "
             "table.initial.version table.metadata.partitions "
             "table.metadata.partitions.inflight table.version timeline.history.path "
             "timeline.layout.version timeline.path", PROPERTY),
    _refused(H, "base.file.format table.base.file.format table.ro.file.format "
             "table.rt.file.format table.log.file.format", PROPERTY, "PARQUET"),
    _refused(H, "table.format", PROPERTY, "native"),
    _refused(H, "table.timeline.timezone", PROPERTY, "UTC"),
    _refused(H, "populate.meta.fields", PROPERTY, "true"),
    _refused(H, "table.multiple.base.file.formats.enable partition.metafile.use.base.format",
             PROPERTY, "false"),
    # --- files ---
    _refused(H + "parquet.", "compression.codec", PARQUET, "snappy"),
    _refused(H + "parquet.", "outputtimestamptype", "timestamps have microseconds here",
             "TIMESTAMP_MICROS"),
    _refused(H + "parquet.", "writelegacyformat.enabled", "it is not written here", "false"),
    _refused(H, "parquet.write.config.injector.class bulkinsert.user.defined.partitioner.class "
             "storage.layout.partitioner.class fileid.prefix.provider.class writestatus.class",
             CODE),
    _harmless(H, "parquet.block.size parquet.page.size parquet.compression.ratio "
              "parquet.dictionary.enabled parquet.field_id.write.enabled "
              "parquet.flink.rowdata.write.support.class parquet.small.file.limit "
              "parquet.spark.row.write.support.class parquet.write.utc-timezone.enabled "
              "avro.write.support.class copyonwrite.* merge.small.file.group.candidates.limit "
              "record.size.* bulkinsert.sort.mode bulkinsert.sort.suffix.record_key "
              "bulkinsert.user.defined.partitioner.sort.columns "
              "bulkinsert.are.partitioner.records.sorted storage.layout.type storage.class "
              "io.factory.class bloom.index.filter.type", "only the layout of files differs; an "
              "insert makes new files, and a clustering joins small ones"),
    _harmless(H, "orc.* hfile.* lance.*", "base files are parquet here"),
    # --- Hudi's engine ---
    _harmless(H, "insert.shuffle.parallelism bulkinsert.shuffle.parallelism "
              "delete.shuffle.parallelism block.writes.on.speculative.execution common.* "
              "consistency.check.* optimistic.consistency.guard.sleep_time_ms "
              "embed.timeline.server embed.timeline.server.* "
              "fail.job.on.duplicate.data.file.detection file.listing.parallelism "
              "filesystem.* fs.atomic_creation.support memory.* merge.data.validation.enabled "
              "merge.use.record.positions release.resource.on.completion.enable "
              "sensitive.config.keys spark.sql.optimized.writes.enable "
              "spark.sql.merge.into.partial.updates spark.polaris.catalog.class "
              "write.application.id write.auto.upgrade write.buffer.* "
              "write.complex.keygen.validation.enable "
              "write.executor.* write.merge.handle.fallback write.record.positions "
              "write.status.storage.level write.tagged.record.storage.level "
              "datasource.write.row.writer.enable datasource.write.commitmeta.key.prefix", ENGINE),
    _refused(H + "write.", "ignore.failed", "a row that cannot be written fails the write",
             "false"),
    # --- streams ---
    _refused(W, "streaming.ignore.failed.batch", "a batch that fails ends the query: going on "
             "would lose its rows", "false"),
    _harmless(W, "streaming.retry.count streaming.retry.interval.ms "
              "streaming.checkpoint.identifier",
              "a query's own id tells its batches, and conflicts are tried again in place "
              "(hoodie.write.num.retries.on.conflict.failures)"),
    _harmless(H, "streamer.* deltastreamer.*", "only the streamer reads it"),
    # --- reads ---
    _obeyed(H + "datasource.", "query.type", "snapshot|read_optimized|incremental",
            "what is read", reader=True),
    _refused(H + "datasource.", "view.type", "write hoodie.datasource.query.type", reader=True),
    _obeyed(H + "datasource.read.", "begin.instanttime end.instanttime start.timestamp "
            "end.timestamp", "text", "an increment's ends", reader=True),
    _obeyed(H + "datasource.", "streaming.startOffset", "text", "where a stream begins",
            reader=True),
    _obeyed("", "as.of.instant", "text", "a snapshot of the past", reader=True),
    _obeyed("lockkit.", "read.meta.columns", "flag", "Hudi's own columns are shown", reader=True),
    _refused(H + "datasource.", "query.incremental.format",
             "an increment's rows are those of its end; change logs are not read here",
             "latest_state", reader=True),
    _refused(H + "datasource.read.", "incr.filters incr.path.glob incr.skip_cluster "
             "incr.skip_compact paths table.valued.function.* schema.use.end.instanttime",
             "rows would be others than asked for; filter the frame", "false", reader=True),
    _refused(H, "read.timeline.holes.resolution.policy", "an increment never passes a pending "
             "instant", "FAIL|BLOCK", reader=True),
    _harmless(H, "datasource.read.create.filesystem.relation "
              "datasource.read.extract.partition.values.from.path datasource.read.file.index.* "
              "datasource.read.incr.fallback.fulltablescan.enable "
              "datasource.read.incr.table.version datasource.merge.type "
              "datasource.read.partition.value.extractor.enabled "
              "datasource.read.streaming.table.version "
              "enable.data.skipping file.group.reader.enabled file.index.* query.as.ro.table "
              "read.blob.inline.mode", READS, reader=True),
)  # fmt: skip

NAMES: dict[str, tuple[str, ...]] = {
    "operation": (W + "operation",),
    "record_key": (W + "recordkey.field", "hoodie.table.recordkey.fields"),
    "precombine": (W + "precombine.field", "hoodie.table.precombine.field",
                   "hoodie.table.ordering.fields"),
    "partition_path": (W + "partitionpath.field", "hoodie.table.partition.fields"),
    "table_name": ("hoodie.table.name", W + "table.name"),
    "version": ("hoodie.write.table.version",),
    "mode": ("lockkit.commit.mode",),
    "buckets": ("hoodie.bucket.index.num.buckets",),
    "hive_style": (W + "hive_style_partitioning",),
    "urlencode": (W + "partitionpath.urlencode",),
    "retries": ("hoodie.write.num.retries.on.conflict.failures",),
    "drop_duplicates": (W + "insert.drop.duplicates",),
    "combine": ("hoodie.combine.before.insert",),
    "allow_empty": ("hoodie.allow.empty.commit",),
    "file_bytes_max": ("hoodie.parquet.max.file.size",),
    "tasks": ("hoodie.upsert.shuffle.parallelism",),
}  # fmt: skip
"""The options that a Python keyword stands for; of several the first that is given counts."""

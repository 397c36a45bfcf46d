package reput.accelerator;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.List;
import java.util.Set;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/**
 * A columnar Spark source of messages of running brokers. A task reads what is plain by itself, and
 * lets a Python worker read the rest, if there is any: only then is the worker used.
 */
public final class BrokerSource {
  private static final Logger LOG = LoggerFactory.getLogger("reput.spark");

  /** Returns what Python workers have to read, for each of some tasks. */
  public Dataset<Row> numbers(SparkSession session, int taskCount) {
    RDD<InternalRow> numbers = new TaskNumbers(session.sparkContext(), taskCount);
    return session.internalCreateDataFrame(numbers, TaskNumbers.SCHEMA, false);
  }

  /**
   * Returns the messages.
   *
   * @param plan the plan, which {@code reput.spark.accelerator} makes
   * @param python what Python workers read: frames of records, made from the task numbers
   */
  public Dataset<Row> messages(SparkSession session, String plan, Dataset<Row> python)
      throws JsonProcessingException {
    Plan parsed = new ObjectMapper().readValue(plan, Plan.class);
    RDD<InternalRow> records = python.queryExecution().toRdd();
    Table table = new Messages(Column.schemaOf(parsed.columns()), parsed, records);
    return Dataset.ofRows(
        session, DataSourceV2Relation.create(table, Option.empty(), Option.empty()));
  }

  private record Messages(StructType schema, Plan plan, RDD<InternalRow> python)
      implements Table, SupportsRead {
    @Override
    public String name() {
      return "rocketmq";
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new MessageScan(plan, python, schema);
    }
  }

  /** One scan: the builder of itself. */
  private static final class MessageScan
      implements SupportsPushDownRequiredColumns, Scan, Batch {
    private final Plan plan;
    private final RDD<InternalRow> python;
    private StructType schema;

    MessageScan(Plan plan, RDD<InternalRow> python, StructType schema) {
      this.plan = plan;
      this.python = python;
      this.schema = schema;
    }

    @Override
    public void pruneColumns(StructType required) {
      schema = required;
    }

    @Override
    public Scan build() {
      return this;
    }

    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public String description() {
      return "rocketmq, accelerated: " + python.getNumPartitions() + " partitions of brokers";
    }

    @Override
    public Batch toBatch() {
      return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
      Partition[] ofPython = python.partitions();
      InputPartition[] partitions = new InputPartition[ofPython.length];
      for (int i = 0; i < ofPython.length; i++) {
        partitions[i] = new Part(plan.pulls().tasks().get(i), ofPython[i]);
      }
      return partitions;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new ReaderFactory(plan.withoutPartitions(), List.of(schema.fieldNames()), python);
    }
  }

  /**
   * A partition.
   *
   * @param plain what the task pulls by itself
   * @param python the partition of what a Python worker reads
   */
  private record Part(Plan.Task plain, Partition python) implements InputPartition {}

  private record ReaderFactory(Plan plan, List<String> columns, RDD<InternalRow> python)
      implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("rows come in columnar batches");
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new Reader(this, (Part) partition);
    }
  }

  private static final class Reader implements PartitionReader<ColumnarBatch> {
    private final ReaderFactory source;
    private final Part part;
    private final TaskContext task = TaskContext.get();
    private final Records records;
    private final ColumnarBatch batch;
    private BrokerReader plain;
    private PythonRecords rest;

    Reader(ReaderFactory source, Part part) {
      this.source = source;
      this.part = part;
      records = new Records(source.plan(), part.plain().broker(), Column.setOf(source.columns()));
      batch = records.batchOf(source.columns());
      if (part.plain().address() == null) {
        startPython(0);
      } else {
        plain = new BrokerReader(source.plan(), part.plain(), records);
      }
    }

    @Override
    public boolean next() throws IOException {
      boolean hasMore = rest == null ? plain.next() : rest.next();
      if (!hasMore && rest == null && plain.reason() != null) {
        plain.close();
        LOG.warn(
            "pulls from {}: {}; Python reads on after {} messages of task {}",
            part.plain().broker(), plain.reason(), plain.readCount(), part.python().index());
        startPython(plain.readCount());
        hasMore = rest.next();
      }
      batch.setNumRows(records.count);
      return hasMore;
    }

    private void startPython(long readCount) {
      TaskNumbers.note(task, readCount);
      rest = new PythonRecords(records, source.python().iterator(part.python(), task));
    }

    @Override
    public ColumnarBatch get() {
      return batch;
    }

    @Override
    public void close() {
      if (plain != null) {
        plain.close();
      }
    }
  }
}

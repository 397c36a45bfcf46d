package reput.accelerator;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * A columnar Spark source of commit logs. Its one option, {@code plan}, is made by {@code
 * reput.spark.accelerator}; it is found by its class name, so that the short name {@code rocketmq}
 * stays that of the Python source.
 */
public final class CommitLogSource implements TableProvider {
  /** Version of the plan, as in {@code reput.spark.accelerator}. */
  public static final int PLAN_VERSION = 3;

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return Column.schemaOf(planOf(options).columns());
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new LogTable(schema);
  }

  private static Plan planOf(CaseInsensitiveStringMap options) {
    String text = options.get("plan");
    if (text == null) {
      throw new IllegalArgumentException(
          "option plan is missing: read with reput.spark.read(spark, path), which makes it");
    }
    try {
      return new ObjectMapper().readValue(text, Plan.class);
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException(
          "option plan is not from this version of reput.spark.accelerator: "
              + error.getOriginalMessage());
    }
  }

  private record LogTable(StructType schema) implements Table, SupportsRead {
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
      return new LogScan(planOf(options), schema);
    }
  }

  /** One scan: the builder of itself, as it has nothing but the selection to build. */
  private static final class LogScan
      implements SupportsPushDownRequiredColumns, SupportsPushDownFilters, Scan, Batch {
    private final Plan plan;
    private StructType schema;
    private final List<Filter> pushed = new ArrayList<>();
    private Selection selection;

    LogScan(Plan plan, StructType schema) {
      this.plan = plan;
      this.schema = schema;
      selection = Selection.of(plan);
    }

    @Override
    public void pruneColumns(StructType required) {
      schema = required;
    }

    @Override
    public Filter[] pushFilters(Filter[] filters) {
      List<Filter> rest = new ArrayList<>();
      for (Filter filter : filters) {
        if (push(filter)) {
          pushed.add(filter);
        } else {
          rest.add(filter);
        }
      }
      return rest.toArray(Filter[]::new);
    }

    private boolean push(Filter filter) {
      if (filter instanceof EqualTo equal) {
        return push(equal.attribute(), new Object[] {equal.value()});
      }
      if (filter instanceof In in) {
        return push(in.attribute(), in.values());
      }
      // Spark adds it to each comparison; both columns have a value in each record.
      return filter instanceof IsNotNull present
          && (present.attribute().equals("topic") || present.attribute().equals("queue_id"));
    }

    private boolean push(String column, Object[] values) {
      Set<Object> wanted = new HashSet<>();
      for (Object value : values) {
        if (value != null) { // equal to nothing
          wanted.add(value);
        }
      }
      if (column.equals("topic") && wanted.stream().allMatch(String.class::isInstance)) {
        selection = selection.withTopics(wanted);
        return true;
      }
      if (column.equals("queue_id") && wanted.stream().allMatch(Integer.class::isInstance)) {
        selection = selection.withQueueIds(wanted);
        return true;
      }
      return false;
    }

    @Override
    public Filter[] pushedFilters() {
      return pushed.toArray(Filter[]::new);
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
      return "rocketmq, accelerated: " + plan.partitions().size() + " partitions, " + pushed;
    }

    @Override
    public Batch toBatch() {
      return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
      return plan.partitions().stream().map(LogPartition::new).toArray(InputPartition[]::new);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new ReaderFactory(
          plan.withoutPartitions(), selection, List.of(schema.fieldNames()));
    }
  }

  private record LogPartition(Plan.Part part) implements InputPartition {}

  private record ReaderFactory(Plan plan, Selection selection, List<String> columns)
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
      return new LogReader(plan, selection, columns, ((LogPartition) partition).part());
    }
  }
}

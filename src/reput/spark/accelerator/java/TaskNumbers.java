package reput.accelerator;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.Dependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * What the Python worker of each task has to read: a row with the number of the task, and how many
 * of its messages, in order, are read already.
 */
final class TaskNumbers extends RDD<InternalRow> {
  static final StructType SCHEMA =
      new StructType().add("id", DataTypes.LongType).add("read_count", DataTypes.LongType);

  /** Numbers of messages that running tasks have read, by task attempt id. */
  private static final Map<Long, Long> READ = new ConcurrentHashMap<>();

  private final int count;

  TaskNumbers(SparkContext context, int count) {
    super(
        context,
        CollectionConverters.asScala(List.<Dependency<?>>of()).toSeq(),
        ClassTag$.MODULE$.apply(InternalRow.class));
    this.count = count;
  }

  /** Notes what the running task has read, for its Python worker, which starts next. */
  static void note(TaskContext task, long readCount) {
    READ.put(task.taskAttemptId(), readCount);
  }

  @Override
  public Partition[] getPartitions() {
    Partition[] partitions = new Partition[count];
    for (int i = 0; i < count; i++) {
      partitions[i] = new Number(i);
    }
    return partitions;
  }

  @Override
  public Iterator<InternalRow> compute(Partition split, TaskContext task) {
    Long readCount = READ.remove(task.taskAttemptId());
    InternalRow row =
        new GenericInternalRow(
            new Object[] {(long) split.index(), readCount == null ? 0L : readCount});
    return CollectionConverters.asScala(List.of(row).iterator());
  }

  private record Number(int index) implements Partition {}
}

package reput.accelerator;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.TaskCompletionListener;
import sun.nio.ch.DirectBuffer;

/**
 * Rows of records that a Python worker has pulled from a broker, checked and selected: each row of
 * the input has whole records, one after the other, and the name of the broker.
 */
public final class PulledRows implements FlatMapFunction<Iterator<InternalRow>, InternalRow> {
  private Plan plan;

  /** Takes the plan, which {@code reput.spark.accelerator} makes, without partitions. */
  public void setPlan(String text) throws JsonProcessingException {
    plan = new ObjectMapper().readValue(text, Plan.class);
  }

  /** Returns the columns of the rows. */
  public StructType schema() {
    return Column.schemaOf(plan.columns());
  }

  @Override
  public Iterator<InternalRow> call(Iterator<InternalRow> pulled) {
    return new Rows(plan, pulled);
  }

  /** The rows, each of which is valid until the next one. */
  private static final class Rows implements Iterator<InternalRow> {
    private final Plan plan;
    private final Iterator<InternalRow> pulled;
    private final RecordBounds bounds = new RecordBounds();
    /**
     * Buffers for the records, the last of which is in use: Spark may hold texts that point into
     * an earlier one until the task ends.
     */
    private final List<ByteBuffer> buffers = new ArrayList<>();

    private Records records;
    private ColumnarBatch batch;
    private Iterator<InternalRow> rows = Collections.emptyIterator();
    private long position;
    private long end;

    Rows(Plan plan, Iterator<InternalRow> pulled) {
      this.plan = plan;
      this.pulled = pulled;
      TaskContext task = TaskContext.get();
      if (task != null) {
        task.addTaskCompletionListener((TaskCompletionListener) ended -> buffers.clear());
      }
    }

    @Override
    public boolean hasNext() {
      while (!rows.hasNext()) {
        if (position == end) {
          if (!pulled.hasNext()) {
            return false;
          }
          take((UnsafeRow) pulled.next());
        }
        findRecords();
      }
      return true;
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      return rows.next();
    }

    /** Copies the records of a row, which is valid until the next one. */
    private void take(UnsafeRow row) {
      long place = row.getLong(0); // where the value is, and its size
      int size = (int) place;
      if (buffers.isEmpty() || buffers.get(buffers.size() - 1).capacity() < size) {
        buffers.add(ByteBuffer.allocateDirect(Integer.highestOneBit(Math.max(size, 1)) << 1));
      }
      position = ((DirectBuffer) buffers.get(buffers.size() - 1)).address();
      end = position + size;
      Platform.copyMemory(
          row.getBaseObject(), row.getBaseOffset() + (place >>> 32), null, position, size);
      String broker = row.getUTF8String(1).toString();
      if (records == null || !records.broker.equals(broker)) {
        Set<Column> selected = EnumSet.noneOf(Column.class);
        plan.columns().forEach(name -> selected.add(Column.of(name)));
        records = new Records(plan, broker, selected);
        batch =
            new ColumnarBatch(
                plan.columns().stream()
                    .map(name -> Column.of(name).vectorOf(records))
                    .toArray(ColumnVector[]::new));
      }
    }

    private void findRecords() {
      records.clear();
      while (records.count < Records.COUNT_MAX && position < end) {
        if (!bounds.find(position, end - position)) {
          throw new UncheckedIOException(new IOException("no whole record from a Python worker"));
        }
        records.add(position, bounds);
        position += bounds.size;
      }
      batch.setNumRows(records.count);
      rows = batch.rowIterator();
    }
  }
}

package reput.accelerator;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import scala.collection.Iterator;
import sun.nio.ch.DirectBuffer;

/**
 * Records that a Python worker has pulled from a broker, checked and selected: each row of its has
 * whole records, one after the other, and the name of the broker.
 */
final class PythonRecords {
  private final Records records;
  private final Iterator<InternalRow> pulled;
  private final RecordBounds bounds = new RecordBounds();
  /**
   * Buffers for the records, the last of which is in use: Spark may hold texts that point into
   * an earlier one until the task ends.
   */
  private final List<ByteBuffer> buffers = new ArrayList<>();

  private long position;
  private long end;

  PythonRecords(Records records, Iterator<InternalRow> pulled) {
    this.records = records;
    this.pulled = pulled;
  }

  /** Replaces the records by the next ones; returns whether there are any. */
  boolean next() throws IOException {
    records.clear();
    while (position == end) {
      if (!pulled.hasNext()) {
        return false;
      }
      take((UnsafeRow) pulled.next());
    }
    while (records.count < Records.COUNT_MAX && position < end) {
      if (!bounds.find(position, end - position)) {
        throw new IOException("no whole record from a Python worker");
      }
      records.add(position, bounds);
      position += bounds.size;
    }
    return true;
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
  }
}

package reput.accelerator;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.TaskCompletionListener;
import sun.nio.ch.DirectBuffer;

/** Reads a partition: walks the records of its segments, in the mapped files. */
final class LogReader implements PartitionReader<ColumnarBatch> {
  private final boolean checkCrc;
  private final Set<Integer> queueIds;
  private final TopicSet topics;
  private final TopicSet hiddenTopics;
  private final int hiddenFlags;
  private final Iterator<Plan.Segment> segments;
  private final Records records;
  private final ColumnarBatch batch;
  private final Checksums checksums = new Checksums();
  private final RecordBounds bounds = new RecordBounds();
  /**
   * All maps of the task. Texts point into them, and Spark may hold some until the task ends, so
   * that only the collector unmaps: a read of an unmapped page would end the process.
   */
  private final List<ByteBuffer> maps = new ArrayList<>();

  private Plan.Segment segment;
  private MappedByteBuffer map;
  private long mapAddress;
  private long position;

  LogReader(Plan plan, Selection selection, List<String> columns, Plan.Part part) {
    checkCrc = plan.checkCrc();
    queueIds = selection.queueIds();
    topics = selection.topics() == null ? null : new TopicSet(selection.topics());
    hiddenTopics = new TopicSet(selection.hiddenTopics());
    hiddenFlags = selection.hiddenFlags();
    segments = part.segments().iterator();
    records = new Records(plan, part.broker(), Column.setOf(columns));
    batch = records.batchOf(columns);
    TaskContext task = TaskContext.get();
    if (task != null) {
      task.addTaskCompletionListener((TaskCompletionListener) ended -> maps.clear());
    }
  }

  @Override
  public boolean next() throws IOException {
    records.clear();
    while (records.count < Records.COUNT_MAX) {
      if (segment == null || position == segment.stop()) {
        if (records.count > 0 || !segments.hasNext()) {
          break; // a batch has records of one file
        }
        open(segments.next());
      } else {
        readRecord();
      }
    }
    batch.setNumRows(records.count);
    return records.count > 0;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() {}

  private void open(Plan.Segment next) throws IOException {
    segment = next;
    records.file = next.path();
    position = next.start();
    long length = next.stop() - next.start();
    try (FileChannel channel = FileChannel.open(Path.of(next.path()))) {
      if (channel.size() < next.stop() - next.fileStart()) {
        throw changed("is shorter");
      }
      map = channel.map(
          FileChannel.MapMode.READ_ONLY, next.start() - next.fileStart(), length);
    } catch (NoSuchFileException error) {
      throw changed("is gone");
    }
    maps.add(map);
    mapAddress = ((DirectBuffer) map).address();
  }

  private IOException changed(String how) {
    return new IOException(
        "file " + segment.path() + " " + how
            + " since the read was planned: call reput.spark.read again");
  }

  private void readRecord() throws IOException {
    long address = mapAddress + position - segment.start();
    long left = segment.stop() - position;
    if (left < Layout.BLANK_BYTES) {
      throw notWhole();
    }
    if (Memory.intAt(address + Layout.MAGIC) == Layout.MAGIC_BLANK
        && Memory.intAt(address) == segment.fileEnd() - position) {
      position = segment.stop();
      return;
    }
    if (!bounds.find(address, left)
        || Memory.longAt(address + Layout.PHYSICAL_OFFSET) != position) {
      throw notWhole();
    }
    if ((queueIds == null || queueIds.contains(Memory.intAt(address + Layout.QUEUE_ID)))
        && (topics == null || topics.has(bounds.topic, bounds.topicLength))) {
      String mismatch =
          checkCrc ? checksums.mismatch(bounds, address, map, mapAddress) : null;
      if (mismatch != null) {
        throw damaged(mismatch);
      }
      if ((bounds.sysFlag & hiddenFlags) == 0
          && !hiddenTopics.has(bounds.topic, bounds.topicLength)) {
        if ((bounds.sysFlag & Layout.INNER_BATCH) != 0) { // none of a queue that was planned
          throw damaged("the record has a batch of messages inside, but no unit");
        }
        records.add(address, bounds);
      }
    }
    position += bounds.size;
  }

  private IOException notWhole() {
    return damaged("not a whole record");
  }

  private IOException damaged(String reason) {
    return Damage.error(reason, position, segment.path());
  }

  /** Names of topics, compared with stored ones. */
  private static final class TopicSet {
    private final Set<UTF8String> names = new HashSet<>();
    /** Bit n is set if a topic has n bytes: most stored topics need no more. */
    private long lengths;
    /** True if a topic has U+FFFD, which malformed bytes become: no other topic equals theirs. */
    private boolean hasReplaced;

    TopicSet(Set<String> topics) {
      for (String topic : topics) {
        UTF8String name = UTF8String.fromString(topic);
        names.add(name);
        lengths |= 1L << Math.min(name.numBytes(), 63);
        hasReplaced |= topic.indexOf('\uFFFD') >= 0;
      }
    }

    boolean has(long address, int length) {
      byte[] repaired = hasReplaced ? Records.repaired(address, length) : null;
      if (repaired != null) {
        return names.contains(UTF8String.fromBytes(repaired));
      }
      return (lengths >>> Math.min(length, 63) & 1) != 0
          && names.contains(UTF8String.fromAddress(null, address, length));
    }
  }
}

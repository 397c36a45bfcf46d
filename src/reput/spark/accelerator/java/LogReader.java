package reput.accelerator;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.zip.CRC32;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.TaskCompletionListener;
import sun.nio.ch.DirectBuffer;

/** Reads a partition: walks the records of its segments, in the mapped files. */
final class LogReader implements PartitionReader<ColumnarBatch> {
  private static final int CRC_PROPERTY_BYTES = 20;
  /** {@code __CRC32#}, the name of the property with the checksum of the record. */
  private static final long CRC_PROPERTY = 0x5F5F435243333223L;

  private final boolean checkCrc;
  private final Set<Integer> queueIds;
  private final TopicSet topics;
  private final TopicSet hiddenTopics;
  private final int hiddenFlags;
  private final Iterator<Plan.Segment> segments;
  private final Records records;
  private final ColumnarBatch batch;
  private final CRC32 crc = new CRC32();
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
    Set<Column> selected = EnumSet.noneOf(Column.class);
    columns.forEach(name -> selected.add(Column.of(name)));
    records = new Records(plan, part.broker(), selected);
    batch =
        new ColumnarBatch(
            columns.stream()
                .map(name -> Column.of(name).vectorOf(records))
                .toArray(ColumnVector[]::new));
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
      if (checkCrc) {
        checkCrc(address);
      }
      if ((bounds.sysFlag & hiddenFlags) == 0
          && !hiddenTopics.has(bounds.topic, bounds.topicLength)) {
        records.add(address, bounds);
      }
    }
    position += bounds.size;
  }

  private void checkCrc(long address) throws IOException {
    if (bounds.bodyLength > 0
        && crcOf(bounds.body, bounds.bodyLength) != Memory.intAt(address + Layout.BODY_CRC)) {
      throw damaged("body does not match BODYCRC");
    }
    long property = address + bounds.size - CRC_PROPERTY_BYTES;
    if (bounds.propertiesLength < CRC_PROPERTY_BYTES
        || Memory.longAt(property) != CRC_PROPERTY
        || Memory.byteAt(property + 8) != 1
        || Memory.byteAt(property + 19) != 2) {
      return;
    }
    long value = 0; // the last digit comes first
    for (int i = 9; i >= 0; i--) {
      int digit = Memory.byteAt(property + 9 + i) - '0';
      if (digit < 0 || digit > 9) {
        return;
      }
      value = 10 * value + digit;
    }
    if (value != crcOf(address, bounds.size - CRC_PROPERTY_BYTES)) {
      throw damaged("record does not match its __CRC32# property");
    }
  }

  private int crcOf(long address, int length) {
    int start = (int) (address - mapAddress);
    map.limit(start + length).position(start);
    crc.reset();
    crc.update(map);
    return (int) crc.getValue() & Integer.MAX_VALUE;
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

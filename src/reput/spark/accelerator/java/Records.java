package reput.accelerator;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import sun.nio.ch.DirectBuffer;

/**
 * The records of a batch: where they are, and where their texts are. Vectors read the rest from
 * there, so that a column that is not selected costs nothing.
 */
final class Records {
  static final int COUNT_MAX = 4096;
  private static final int NAME_VALUE = 1;
  private static final int PAIR_END = 2;
  private static final int SPACE = ' ';
  private static final int TAGS = 0x54414753;
  private static final int KEYS = 0x4B455953;
  private static final long UNIQ_KEY = 0x554E49515F4B4559L;

  final Plan plan;
  final String broker;
  /** Path of the file that is being read; null for records of a running broker. */
  String file;
  private final boolean hasTopics;
  private final boolean hasProperties;
  private final boolean hasPairs;
  private final boolean hasWords;

  int count;
  /** Addresses of the records. */
  final long[] record = new long[COUNT_MAX];
  /** Addresses and stored lengths of the bodies. */
  final Texts bodies = new Texts(COUNT_MAX);
  final Texts topics = new Texts(COUNT_MAX);
  /** Values of properties that are columns; length 0 where absent. */
  final Texts tags = new Texts(COUNT_MAX);
  final Texts uniqueKeys = new Texts(COUNT_MAX);
  private final Texts keys = new Texts(COUNT_MAX);
  /** Names and values of all properties; the pairs of row i begin at {@code firstPair[i]}. */
  final Texts names = new Texts(COUNT_MAX);
  final Texts values = new Texts(COUNT_MAX);
  final int[] firstPair = new int[COUNT_MAX + 1];
  /** Words of KEYS; those of row i begin at {@code firstWord[i]}. */
  final Texts words = new Texts(COUNT_MAX);
  final int[] firstWord = new int[COUNT_MAX + 1];
  /** Texts of the batch that are not in the log: malformed UTF-8 replaced. */
  private final List<ByteBuffer> replaced = new ArrayList<>();

  Records(Plan plan, String broker, Set<Column> columns) {
    this.plan = plan;
    this.broker = broker;
    hasTopics = columns.contains(Column.TOPIC);
    hasPairs = columns.contains(Column.PROPERTIES);
    hasWords = columns.contains(Column.KEYS);
    hasProperties =
        hasPairs || hasWords || columns.contains(Column.TAGS) || columns.contains(Column.MSG_ID);
  }

  /** Returns a batch with columns of these records, whatever they are at a time. */
  ColumnarBatch batchOf(List<String> columns) {
    return new ColumnarBatch(
        columns.stream()
            .map(name -> Column.of(name).vectorOf(this))
            .toArray(ColumnVector[]::new));
  }

  void clear() {
    count = names.count = values.count = words.count = 0;
    replaced.clear();
  }

  /** Removes the records after the first {@code count} ones. */
  void truncate(int count) {
    this.count = count;
    names.count = values.count = firstPair[count];
    words.count = firstWord[count];
  }

  void add(long address, RecordBounds bounds) {
    record[count] = address;
    bodies.set(count, bounds.body, bounds.bodyLength);
    if (hasTopics) {
      byte[] repaired = repaired(bounds.topic, bounds.topicLength);
      if (repaired == null) {
        topics.set(count, bounds.topic, bounds.topicLength);
      } else {
        topics.set(count, keep(repaired), repaired.length);
      }
    }
    if (hasProperties) {
      byte[] repaired = repaired(bounds.properties, bounds.propertiesLength);
      long properties = repaired == null ? bounds.properties : keep(repaired);
      split(properties, properties + (repaired == null ? bounds.propertiesLength : repaired.length));
    }
    count++;
  }

  /** Returns a text with malformed UTF-8 replaced as by Java's String; null if it is well formed. */
  static byte[] repaired(long address, int length) {
    if (Memory.isAscii(address, length)) {
      return null;
    }
    byte[] stored = Memory.bytesAt(address, length);
    byte[] text = new String(stored, StandardCharsets.UTF_8).getBytes(StandardCharsets.UTF_8);
    return Arrays.equals(stored, text) ? null : text;
  }

  private long keep(byte[] text) {
    ByteBuffer buffer = ByteBuffer.allocateDirect(Math.max(text.length, 1));
    replaced.add(buffer);
    long address = ((DirectBuffer) buffer).address();
    Platform.copyMemory(text, Platform.BYTE_ARRAY_OFFSET, null, address, text.length);
    return address;
  }

  /** Splits a property string; of equal names the last one stays. */
  private void split(long address, long end) {
    int first = firstPair[count] = names.count;
    tags.set(count, 0, 0);
    keys.set(count, 0, 0);
    uniqueKeys.set(count, 0, 0);
    while (address < end) {
      long separator = Memory.find(address, end, NAME_VALUE, PAIR_END);
      long value = separator + 1;
      long pairEnd = separator;
      if (separator < end && Memory.byteAt(separator) == NAME_VALUE) {
        pairEnd = Memory.find(value, end, PAIR_END, PAIR_END);
      }
      int nameLength = (int) (separator - address);
      int valueLength = (int) (pairEnd - value);
      if (nameLength > 0 && valueLength > 0) {
        if (hasPairs) {
          int same = names.find(first, address, nameLength);
          if (same < names.count) {
            names.remove(same);
            values.remove(same);
          }
          names.add(address, nameLength);
          values.add(value, valueLength);
        }
        if (nameLength == 4) {
          int name = Memory.intAt(address);
          if (name == TAGS) {
            tags.set(count, value, valueLength);
          } else if (name == KEYS) {
            keys.set(count, value, valueLength);
          }
        } else if (nameLength == 8 && Memory.longAt(address) == UNIQ_KEY) {
          uniqueKeys.set(count, value, valueLength);
        }
      }
      address = pairEnd + 1;
    }
    firstPair[count + 1] = names.count;
    if (hasWords) {
      splitWords(keys.address(count), keys.address(count) + keys.length(count));
    }
  }

  private void splitWords(long address, long end) {
    firstWord[count] = words.count;
    while (address < end) {
      long wordEnd = Memory.find(address, end, SPACE, SPACE);
      if (wordEnd > address) {
        words.add(address, (int) (wordEnd - address));
      }
      address = wordEnd + 1;
    }
    firstWord[count + 1] = words.count;
  }

  int sysFlag(int row) {
    return Memory.intAt(record[row] + Layout.SYS_FLAG);
  }

  /** Returns the address of RECONSUMETIMES, with which the fields before the body begin. */
  long tail(int row) {
    return bodies.address(row) - Layout.TAIL_BYTES;
  }

  long storeHost(int row) {
    return tail(row) - Layout.hostBytes(sysFlag(row) & Layout.STORE_HOST_V6);
  }

  long physicalOffset(int row) {
    return Memory.longAt(record[row] + Layout.PHYSICAL_OFFSET);
  }
}

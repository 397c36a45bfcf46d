package reput.accelerator;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.BiFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of view messages: docs/reference/spark-schema.md. */
enum Column {
  TOPIC(DataTypes.StringType, (type, records) -> new Words(type, records, records.topics)),
  BROKER(DataTypes.StringType, Broker::new),
  QUEUE_ID(DataTypes.IntegerType, (type, records) -> new Ints(type, records, Layout.QUEUE_ID)),
  QUEUE_OFFSET(
      DataTypes.LongType, (type, records) -> new Longs(type, records, Layout.QUEUE_OFFSET)),
  PHYSICAL_OFFSET(
      DataTypes.LongType, (type, records) -> new Longs(type, records, Layout.PHYSICAL_OFFSET)),
  MSG_ID(DataTypes.StringType, MessageIds::new),
  OFFSET_MSG_ID(DataTypes.StringType, OffsetIds::new),
  TAGS(DataTypes.StringType, (type, records) -> new Words(type, records, records.tags)),
  KEYS(DataTypes.createArrayType(DataTypes.StringType, true), Keys::new),
  BODY(DataTypes.BinaryType, Body::new),
  PROPERTIES(
      DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType, true), Pairs::new),
  FLAG(DataTypes.IntegerType, (type, records) -> new Ints(type, records, Layout.FLAG)),
  SYS_FLAG(DataTypes.IntegerType, (type, records) -> new Ints(type, records, Layout.SYS_FLAG)),
  BORN_TIMESTAMP(DataTypes.TimestampType, BornTimes::new),
  BORN_HOST(DataTypes.StringType, BornHosts::new),
  STORE_TIMESTAMP(DataTypes.TimestampType, StoreTimes::new),
  STORE_HOST(DataTypes.StringType, StoreHosts::new),
  RECONSUME_TIMES(DataTypes.IntegerType, ReconsumeTimes::new),
  PREPARED_TRANSACTION_OFFSET(DataTypes.LongType, PreparedOffsets::new),
  BODY_CRC(DataTypes.IntegerType, (type, records) -> new Ints(type, records, Layout.BODY_CRC)),
  STORE_SIZE(DataTypes.IntegerType, (type, records) -> new Ints(type, records, 0));

  private final DataType type;
  private final BiFunction<DataType, Records, ColumnVector> maker;

  Column(DataType type, BiFunction<DataType, Records, ColumnVector> maker) {
    this.type = type;
    this.maker = maker;
  }

  static Column of(String name) {
    return valueOf(name.toUpperCase(Locale.ROOT));
  }

  static Set<Column> setOf(List<String> names) {
    Set<Column> columns = EnumSet.noneOf(Column.class);
    names.forEach(name -> columns.add(of(name)));
    return columns;
  }

  static StructType schemaOf(List<String> names) {
    StructType schema = new StructType();
    for (String name : names) {
      schema = schema.add(name, of(name).type, true);
    }
    return schema;
  }

  ColumnVector vectorOf(Records records) {
    return maker.apply(type, records);
  }

  // Each kind of value is a class, so that the calls of Spark's generated code are direct.

  private static final class Ints extends RecordVector {
    private final int position;

    Ints(DataType type, Records records, int position) {
      super(type, records);
      this.position = position;
    }

    @Override
    public int getInt(int row) {
      return Memory.intAt(records.record[row] + position);
    }
  }

  private static final class Longs extends RecordVector {
    private final int position;

    Longs(DataType type, Records records, int position) {
      super(type, records);
      this.position = position;
    }

    @Override
    public long getLong(int row) {
      return Memory.longAt(records.record[row] + position);
    }
  }

  private static final class ReconsumeTimes extends RecordVector {
    ReconsumeTimes(DataType type, Records records) {
      super(type, records);
    }

    @Override
    public int getInt(int row) {
      return Memory.intAt(records.tail(row));
    }
  }

  private static final class PreparedOffsets extends RecordVector {
    PreparedOffsets(DataType type, Records records) {
      super(type, records);
    }

    @Override
    public long getLong(int row) {
      return Memory.longAt(records.tail(row) + 4);
    }
  }

  /** Milliseconds as Spark's microseconds; null outside of the years 1 to 9999. */
  private abstract static class Times extends RecordVector {
    private static final long YEAR_1_MS = -62_135_596_800_000L;
    private static final long YEAR_10000_MS = 253_402_300_800_000L;

    Times(DataType type, Records records) {
      super(type, records);
    }

    abstract long milliseconds(int row);

    @Override
    public boolean isNullAt(int row) {
      long time = milliseconds(row);
      return time < YEAR_1_MS || time >= YEAR_10000_MS;
    }

    @Override
    public long getLong(int row) {
      return milliseconds(row) * 1000;
    }
  }

  private static final class BornTimes extends Times {
    BornTimes(DataType type, Records records) {
      super(type, records);
    }

    @Override
    long milliseconds(int row) {
      return Memory.longAt(records.record[row] + Layout.BORN_TIMESTAMP);
    }
  }

  private static final class StoreTimes extends Times {
    StoreTimes(DataType type, Records records) {
      super(type, records);
    }

    @Override
    long milliseconds(int row) {
      return Memory.longAt(records.storeHost(row) - 8);
    }
  }

  /** Texts, null where there is none. */
  private static final class Words extends RecordVector {
    private final Texts texts;

    Words(DataType type, Records records, Texts texts) {
      super(type, records);
      this.texts = texts;
    }

    @Override
    public boolean isNullAt(int row) {
      return texts.address(row) == 0;
    }

    @Override
    public UTF8String getUTF8String(int row) {
      return texts.text(row);
    }
  }

  private static final class Broker extends RecordVector {
    private final UTF8String name;

    Broker(DataType type, Records records) {
      super(type, records);
      name = UTF8String.fromString(records.broker);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      return name;
    }
  }

  private static final class OffsetIds extends RecordVector {
    OffsetIds(DataType type, Records records) {
      super(type, records);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      return idOf(records, row);
    }

    /** Returns host, port and physical offset in upper-case hexadecimal. */
    static UTF8String idOf(Records records, int row) {
      long host = records.storeHost(row);
      int hostBytes = (int) (records.tail(row) - host);
      byte[] digits = new byte[2 * (hostBytes + 8)];
      for (int i = 0; i < hostBytes; i++) {
        put(digits, i, Memory.byteAt(host + i));
      }
      long offset = records.record[row] + Layout.PHYSICAL_OFFSET;
      for (int i = 0; i < 8; i++) {
        put(digits, hostBytes + i, Memory.byteAt(offset + i));
      }
      return UTF8String.fromBytes(digits);
    }

    private static final byte[] DIGITS = "0123456789ABCDEF".getBytes();

    private static void put(byte[] digits, int i, int value) {
      digits[2 * i] = DIGITS[value >> 4];
      digits[2 * i + 1] = DIGITS[value & 15];
    }
  }

  private static final class MessageIds extends RecordVector {
    MessageIds(DataType type, Records records) {
      super(type, records);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      return records.uniqueKeys.length(row) > 0
          ? records.uniqueKeys.text(row)
          : OffsetIds.idOf(records, row);
    }
  }

  private static final class Keys extends RecordVector {
    private final ColumnVector words;

    Keys(DataType type, Records records) {
      super(type, records);
      words = new Words(DataTypes.StringType, records, records.words);
    }

    @Override
    public ColumnarArray getArray(int row) {
      int first = records.firstWord[row];
      return new ColumnarArray(words, first, records.firstWord[row + 1] - first);
    }
  }

  private static final class Pairs extends RecordVector {
    private final ColumnVector names;
    private final ColumnVector values;

    Pairs(DataType type, Records records) {
      super(type, records);
      names = new Words(DataTypes.StringType, records, records.names);
      values = new Words(DataTypes.StringType, records, records.values);
    }

    @Override
    public ColumnarMap getMap(int row) {
      int first = records.firstPair[row];
      return new ColumnarMap(names, values, first, records.firstPair[row + 1] - first);
    }
  }

  private static final class Body extends RecordVector {
    Body(DataType type, Records records) {
      super(type, records);
    }

    @Override
    public byte[] getBinary(int row) {
      int length = records.bodies.length(row);
      byte[] stored = Memory.bytesAt(records.bodies.address(row), length);
      int sysFlag = records.sysFlag(row);
      if (length == 0 || !records.plan.decompress() || (sysFlag & Layout.COMPRESSED) == 0) {
        return stored;
      }
      try {
        return Bodies.decompress(stored, sysFlag, records.plan.bodyBytesMax());
      } catch (IOException error) {
        String reason = "body cannot be decompressed (" + error.getMessage() + ")";
        long offset = records.physicalOffset(row);
        throw new UncheckedIOException(
            records.file == null
                ? Damage.ofPulled(reason, offset, records.broker)
                : Damage.error(reason, offset, records.file));
      }
    }
  }

  private abstract static class Hosts extends RecordVector {
    private static final int CACHED_MAX = 256;
    /** Texts of recent IPv4 hosts: most messages of a log come from few. */
    private final long[] hosts = new long[CACHED_MAX];
    private final UTF8String[] texts = new UTF8String[CACHED_MAX];

    Hosts(DataType type, Records records) {
      super(type, records);
    }

    final UTF8String textOf(long address, int v6Bit) {
      if (v6Bit != 0) {
        return UTF8String.fromString(v6TextOf(address));
      }
      long host = Memory.longAt(address);
      int place = (int) ((host ^ host >>> 32) * 0x9E3779B9L >>> 24) & (CACHED_MAX - 1);
      if (texts[place] == null || hosts[place] != host) {
        hosts[place] = host;
        texts[place] = UTF8String.fromString(v4TextOf(address));
      }
      return texts[place];
    }

    private static String v4TextOf(long address) {
      return Memory.byteAt(address) + "." + Memory.byteAt(address + 1) + "."
          + Memory.byteAt(address + 2) + "." + Memory.byteAt(address + 3) + ":"
          + Memory.intAt(address + 4);
    }

    private static String v6TextOf(long address) {
      StringBuilder text = new StringBuilder("[");
      for (int i = 0; i < 16; i += 2) {
        text.append(i == 0 ? "" : ":");
        text.append(Integer.toHexString(Memory.shortAt(address + i) & 0xFFFF));
      }
      return text.append("]:").append(Memory.intAt(address + 16)).toString();
    }
  }

  private static final class BornHosts extends Hosts {
    BornHosts(DataType type, Records records) {
      super(type, records);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      int v6Bit = records.sysFlag(row) & Layout.BORN_HOST_V6;
      return textOf(records.record[row] + Layout.BORN_HOST, v6Bit);
    }
  }

  private static final class StoreHosts extends Hosts {
    StoreHosts(DataType type, Records records) {
      super(type, records);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      int v6Bit = records.sysFlag(row) & Layout.STORE_HOST_V6;
      return textOf(records.storeHost(row), v6Bit);
    }
  }
}

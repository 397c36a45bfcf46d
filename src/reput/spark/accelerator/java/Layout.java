package reput.accelerator;

/** The layout of a record: docs/formats/commit-log.md, {@code reput.format.message}. */
final class Layout {
  static final int MAGIC_V1 = 0xDAA320A7;
  static final int MAGIC_V2 = 0xDAA320AB;
  static final int MAGIC_BLANK = 0xCBD43194;

  static final int MAGIC = 4;
  static final int BODY_CRC = 8;
  static final int QUEUE_ID = 12;
  static final int FLAG = 16;
  static final int QUEUE_OFFSET = 20;
  static final int PHYSICAL_OFFSET = 28;
  static final int SYS_FLAG = 36;
  static final int BORN_TIMESTAMP = 40;
  static final int BORN_HOST = 48;

  /** RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET and BODYLEN. */
  static final int TAIL_BYTES = 16;
  static final int BLANK_BYTES = 8;
  /** A record with IPv4 hosts and empty texts, without TOPICLEN. */
  static final int FIXED_BYTES = 90;
  static final int TOPIC_BYTES_MAX_V1 = 127;

  static final int COMPRESSED = 0x1;
  /** The body is a batch of messages, each of which is a row. */
  static final int INNER_BATCH = 0x80;
  static final int BORN_HOST_V6 = 0x10;
  static final int STORE_HOST_V6 = 0x20;
  static final int COMPRESSION_TYPE_MASK = 0x700;

  private Layout() {}

  static int hostBytes(int v6Bit) {
    return v6Bit == 0 ? 8 : 20;
  }
}

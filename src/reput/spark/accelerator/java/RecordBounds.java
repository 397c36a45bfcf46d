package reput.accelerator;

/** The parts of one record, found from its lengths. */
final class RecordBounds {
  int size;
  int sysFlag;
  long body;
  int bodyLength;
  long topic;
  int topicLength;
  long properties;
  int propertiesLength;

  /**
   * Finds the parts of the record at an address.
   *
   * @param left number of bytes from there on
   * @return whether there is a whole record, whose lengths fit together
   */
  boolean find(long address, long left) {
    if (left < Layout.BLANK_BYTES) {
      return false;
    }
    size = Memory.intAt(address);
    int magic = Memory.intAt(address + Layout.MAGIC);
    boolean isV2 = magic == Layout.MAGIC_V2;
    int width = isV2 ? 2 : 1;
    if (!isV2 && magic != Layout.MAGIC_V1 || size < Layout.FIXED_BYTES + width || size > left) {
      return false;
    }
    long end = address + size;
    sysFlag = Memory.intAt(address + Layout.SYS_FLAG);
    body =
        address + Layout.BORN_HOST + Layout.hostBytes(sysFlag & Layout.BORN_HOST_V6) + 8
            + Layout.hostBytes(sysFlag & Layout.STORE_HOST_V6) + Layout.TAIL_BYTES;
    if (body > end) {
      return false;
    }
    bodyLength = Memory.intAt(body - 4);
    topic = body + bodyLength + width;
    if (bodyLength < 0 || topic > end) {
      return false;
    }
    topicLength = isV2 ? Memory.shortAt(topic - 2) & 0xFFFF : Memory.byteAt(topic - 1);
    properties = topic + topicLength + 2;
    if (properties > end || !isV2 && topicLength > Layout.TOPIC_BYTES_MAX_V1) {
      return false;
    }
    propertiesLength = Memory.shortAt(properties - 2);
    return propertiesLength >= 0 && properties + propertiesLength == end;
  }
}

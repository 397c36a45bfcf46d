package reput.accelerator;

import java.nio.ByteBuffer;
import java.util.zip.CRC32;

/** Comparison of records with the checksums that they hold. */
final class Checksums {
  private static final int PROPERTY_BYTES = 20;
  /** {@code __CRC32#}, the name of the property with the checksum of the record. */
  private static final long PROPERTY = 0x5F5F435243333223L;

  private final CRC32 crc = new CRC32();

  /**
   * Returns what is wrong with a record; null if its checksums are right.
   *
   * @param bounds the parts of the record
   * @param address where it is
   * @param memory a buffer that holds it, whose position and limit are changed
   * @param start address of the buffer's first byte
   */
  String mismatch(RecordBounds bounds, long address, ByteBuffer memory, long start) {
    if (bounds.bodyLength > 0
        && crcOf(bounds.body, bounds.bodyLength, memory, start)
            != Memory.intAt(address + Layout.BODY_CRC)) {
      return "body does not match BODYCRC";
    }
    long property = address + bounds.size - PROPERTY_BYTES;
    if (bounds.propertiesLength < PROPERTY_BYTES
        || Memory.longAt(property) != PROPERTY
        || Memory.byteAt(property + 8) != 1
        || Memory.byteAt(property + 19) != 2) {
      return null;
    }
    long value = 0; // the last digit comes first
    for (int i = 9; i >= 0; i--) {
      int digit = Memory.byteAt(property + 9 + i) - '0';
      if (digit < 0 || digit > 9) {
        return null;
      }
      value = 10 * value + digit;
    }
    return value == crcOf(address, bounds.size - PROPERTY_BYTES, memory, start)
        ? null
        : "record does not match its __CRC32# property";
  }

  private int crcOf(long address, int length, ByteBuffer memory, long start) {
    int position = (int) (address - start);
    memory.limit(position + length).position(position);
    crc.reset();
    crc.update(memory);
    return (int) crc.getValue() & Integer.MAX_VALUE;
  }
}

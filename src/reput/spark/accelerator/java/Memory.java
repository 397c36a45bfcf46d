package reput.accelerator;

import java.nio.ByteOrder;
import org.apache.spark.unsafe.Platform;

/** Big-endian numbers and bytes at addresses. Callers check that the bytes are mapped. */
final class Memory {
  private static final boolean IS_LITTLE = ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN;
  private static final long ONES = 0x0101010101010101L;
  private static final long TOPS = 0x8080808080808080L;

  private Memory() {}

  static int byteAt(long address) {
    return Platform.getByte(null, address) & 0xFF;
  }

  static int shortAt(long address) {
    short value = Platform.getShort(null, address);
    return IS_LITTLE ? Short.reverseBytes(value) : value;
  }

  static int intAt(long address) {
    int value = Platform.getInt(null, address);
    return IS_LITTLE ? Integer.reverseBytes(value) : value;
  }

  static long longAt(long address) {
    long value = Platform.getLong(null, address);
    return IS_LITTLE ? Long.reverseBytes(value) : value;
  }

  static byte[] bytesAt(long address, int length) {
    byte[] bytes = new byte[length];
    Platform.copyMemory(null, address, bytes, Platform.BYTE_ARRAY_OFFSET, length);
    return bytes;
  }

  /** Returns the address of the first of two bytes, or {@code end}. */
  static long find(long address, long end, int either, int or) {
    while (end - address >= 8) {
      long word = Platform.getLong(null, address);
      word = IS_LITTLE ? word : Long.reverseBytes(word);
      long hits = zerosOf(word ^ either * ONES) | zerosOf(word ^ or * ONES);
      if (hits != 0) {
        return address + (Long.numberOfTrailingZeros(hits) >>> 3);
      }
      address += 8;
    }
    while (address < end && byteAt(address) != either && byteAt(address) != or) {
      address++;
    }
    return address;
  }

  /** Returns a word whose lowest bit marks the lowest zero byte; higher bits may be wrong. */
  private static long zerosOf(long word) {
    return word - ONES & ~word & TOPS;
  }

  static boolean isAscii(long address, int length) {
    long end = address + length;
    while (end - address >= 8) {
      if ((Platform.getLong(null, address) & TOPS) != 0) {
        return false;
      }
      address += 8;
    }
    while (address < end) {
      if (byteAt(address++) > 127) {
        return false;
      }
    }
    return true;
  }

  static boolean isSame(long address, long other, int length) {
    for (int i = 0; i < length; i++) {
      if (Platform.getByte(null, address + i) != Platform.getByte(null, other + i)) {
        return false;
      }
    }
    return true;
  }
}

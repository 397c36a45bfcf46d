package reput.accelerator;

import java.util.Arrays;
import org.apache.spark.unsafe.types.UTF8String;

/** Texts as addresses and lengths in bytes, which are not copied. */
final class Texts {
  private long[] addresses;
  private int[] lengths;
  int count;

  Texts(int room) {
    addresses = new long[room];
    lengths = new int[room];
  }

  void add(long address, int length) {
    if (count == lengths.length) {
      addresses = Arrays.copyOf(addresses, 2 * count);
      lengths = Arrays.copyOf(lengths, 2 * count);
    }
    set(count++, address, length);
  }

  void set(int row, long address, int length) {
    addresses[row] = address;
    lengths[row] = length;
  }

  /** Removes a text; those after it move up. */
  void remove(int row) {
    count--;
    System.arraycopy(addresses, row + 1, addresses, row, count - row);
    System.arraycopy(lengths, row + 1, lengths, row, count - row);
  }

  /** Returns the first row from {@code row} on with this text, or {@code count}. */
  int find(int row, long address, int length) {
    while (row < count && !(lengths[row] == length && Memory.isSame(addresses[row], address, length))) {
      row++;
    }
    return row;
  }

  long address(int row) {
    return addresses[row];
  }

  int length(int row) {
    return lengths[row];
  }

  UTF8String text(int row) {
    return UTF8String.fromAddress(null, addresses[row], lengths[row]);
  }
}

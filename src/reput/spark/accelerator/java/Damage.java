package reput.accelerator;

import java.io.IOException;

/** Errors about bytes that are not a whole record with the right checksums. */
final class Damage {
  private Damage() {}

  /** Returns an error of a class that drivers know, too: Spark sends it without the jar. */
  static IOException error(String reason, long physicalOffset, String file) {
    return new IOException(
        reason + ": physical offset " + physicalOffset + ", file " + file
            + ". spark.read.format(\"rocketmq\") reports it in full; its option mode=PERMISSIVE"
            + " reads the rest");
  }

  /** Returns an error about a body that a broker has sent. */
  static IOException ofPulled(String reason, long physicalOffset, String broker) {
    return new IOException(
        reason + ": physical offset " + physicalOffset + ", broker " + broker
            + ". Option decompress=none returns bodies as they are stored");
  }
}

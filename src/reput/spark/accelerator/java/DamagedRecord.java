package reput.accelerator;

/** Bytes that are not a whole record with the right checksums. */
final class DamagedRecord extends RuntimeException {
  private static final long serialVersionUID = 1;

  DamagedRecord(String reason, long physicalOffset, String file) {
    super(
        reason + ": physical offset " + physicalOffset + ", file " + file
            + ". spark.read.format(\"rocketmq\") reports it in full; its option mode=PERMISSIVE"
            + " reads the rest");
  }
}

package reput.accelerator;

import java.io.Serializable;
import java.util.List;

/**
 * A read, as {@code reput.spark.accelerator} has planned it. All decisions are in here: what to
 * read, which records are hidden, and what is checked.
 *
 * @param columns names of the columns, in order
 * @param checkCrc whether bodies and records are compared with their checksums
 * @param decompress whether compressed bodies are returned decompressed
 * @param bodyBytesMax largest decompressed body, in bytes
 * @param topics selected topics; null for all
 * @param hiddenTopics topics whose records are left out
 * @param hiddenFlags bits of SYSFLAG; a record with any of them is left out
 * @param partitions parts of the read, in order
 */
record Plan(
    List<String> columns,
    boolean checkCrc,
    boolean decompress,
    int bodyBytesMax,
    List<String> topics,
    List<String> hiddenTopics,
    int hiddenFlags,
    List<Part> partitions)
    implements Serializable {

  /** Returns the plan without its partitions, for the tasks. */
  Plan withoutPartitions() {
    return new Plan(
        columns, checkCrc, decompress, bodyBytesMax, topics, hiddenTopics, hiddenFlags, List.of());
  }

  /**
   * A partition of the read.
   *
   * @param broker value of column broker
   * @param segments ranges of log files, in order
   */
  record Part(String broker, List<Segment> segments) implements Serializable {}

  /**
   * A range of a log file that holds whole records, perhaps a blank after them, and nothing else.
   *
   * @param path the file
   * @param fileStart physical offset of the file's first byte
   * @param fileEnd physical offset at which the next file starts
   * @param start physical offset of the first record
   * @param stop physical offset after the last record, or {@code fileEnd} after a blank
   */
  record Segment(String path, long fileStart, long fileEnd, long start, long stop)
      implements Serializable {}
}

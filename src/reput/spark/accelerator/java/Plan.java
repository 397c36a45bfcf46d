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
 * @param partitions parts of a read of log files, in order
 * @param pulls a read of running brokers; null if it is one of log files
 */
record Plan(
    List<String> columns,
    boolean checkCrc,
    boolean decompress,
    int bodyBytesMax,
    List<String> topics,
    List<String> hiddenTopics,
    int hiddenFlags,
    List<Part> partitions,
    Pulls pulls)
    implements Serializable {

  /** Returns the plan without its parts, for the tasks. */
  Plan withoutPartitions() {
    return new Plan(
        columns, checkCrc, decompress, bodyBytesMax, topics, hiddenTopics, hiddenFlags, List.of(),
        pulls == null ? null : new Pulls(pulls.batchSize, pulls.timeoutMs, List.of()));
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

  /**
   * Pulls from running brokers.
   *
   * @param batchSize largest number of messages of a pull
   * @param timeoutMs time to wait for a reply, in ms
   * @param tasks the tasks, as the Python source has them
   */
  record Pulls(int batchSize, int timeoutMs, List<Task> tasks) implements Serializable {}

  /**
   * A task of pulls from one broker.
   *
   * @param broker name of the broker
   * @param address {@code host:port} of the broker; null if a Python worker has to read everything
   * @param recordBytes estimated size of a record, in bytes
   * @param slices ranges of its queues, in order
   */
  record Task(String broker, String address, double recordBytes, List<Slice> slices)
      implements Serializable {}

  /**
   * A range of a queue.
   *
   * @param topic its topic, which all of its records have
   * @param queueId its queue id
   * @param start queue offset of the first message
   * @param stop queue offset after the last one
   * @param header header of a pull, cut where opaque, queue offset and message count are
   */
  record Slice(String topic, int queueId, long start, long stop, List<String> header)
      implements Serializable {

    /** Returns the number of messages. */
    long count() {
      return stop - start;
    }
  }
}

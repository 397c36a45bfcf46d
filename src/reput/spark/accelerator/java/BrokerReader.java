package reput.accelerator;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.unsafe.Platform;

/**
 * Reads a task's ranges of queues from a broker, as far as all is plain: each reply has exactly the
 * next messages, as whole records of the queue with the right checksums. It stops before the first
 * one that has not, and at any error: the rest is read by Python, which has the rules.
 */
final class BrokerReader implements Closeable {
  private static final int PULLS_IN_FLIGHT = 24;
  /** Approximate size of the replies in flight, in bytes. */
  private static final double BYTES_IN_FLIGHT = 4 << 20;
  /** Approximate size of a reply, in bytes: brokers send at most 256 KiB by default. */
  private static final double REPLY_BYTES = 192 << 10;
  /** Longest wait without a look at whether the task is killed, in ms. */
  private static final long WAIT_MS = 1000;
  private static final int SUCCESS = 0;

  private final Plan.Pulls pulls;
  private final boolean checkCrc;
  private final int hiddenFlags;
  private final Records records;
  private final RecordBounds bounds = new RecordBounds();
  private final Checksums checksums = new Checksums();
  private final TaskContext task = TaskContext.get();

  private final Iterator<Plan.Slice> slices;
  private Plan.Slice slice;
  private byte[] topic;
  /** Queue offset of the next pull. */
  private long next;
  /** Number of messages of the next pull, which brokers may limit. */
  private int count;
  private double recordBytes;

  private PullConnection connection;
  /** Pulls in order; the first ones may have replies. */
  private Pull first;
  private Pull last;
  private int pullCount;
  private int lastOpaque;
  private final Map<Integer, Pull> asked = new HashMap<>();
  private final List<PullConnection.Reply> arrived = new ArrayList<>();
  /** Replies whose records are in use. */
  private final List<PullConnection.Reply> used = new ArrayList<>();

  private long readCount;
  private String reason;

  BrokerReader(Plan plan, Plan.Task part, Records records) {
    pulls = plan.pulls();
    checkCrc = plan.checkCrc();
    hiddenFlags = plan.hiddenFlags();
    this.records = records;
    slices = part.slices().iterator();
    recordBytes = Math.max(part.recordBytes(), 1);
    count = countMax();
    try {
      connection = new PullConnection(part.address());
    } catch (IOException | RuntimeException error) {
      reason = error.toString();
    }
  }

  /** Number of messages read, in the order of the ranges; hidden ones are included. */
  long readCount() {
    return readCount;
  }

  /** Why reading stopped; null if everything was read. */
  String reason() {
    return reason;
  }

  /** Replaces the records by the next ones; returns whether there are any. */
  boolean next() {
    records.clear();
    if (reason == null) {
      used.forEach(connection::release);
      used.clear();
      try {
        read();
      } catch (IOException | NotPlain error) {
        reason = error instanceof NotPlain ? error.getMessage() : error.toString();
      }
    }
    return records.count > 0;
  }

  private void read() throws IOException, NotPlain {
    long resumedNs = System.nanoTime();
    ask();
    connection.send();
    while (records.count == 0 && first != null) {
      if (first.reply == null) {
        receive(resumedNs);
      }
      while (first != null
          && first.reply != null
          && records.count + first.count() <= Records.COUNT_MAX) {
        take(first);
        first = first.next;
        pullCount--;
      }
      ask();
      connection.send();
    }
  }

  private int countMax() {
    return Math.min(pulls.batchSize(), Records.COUNT_MAX);
  }

  /** Queues pulls, as many as may be in flight. */
  private void ask() {
    while (true) {
      if (slice == null || next == slice.stop()) {
        if (!slices.hasNext()) {
          return;
        }
        slice = slices.next();
        topic = slice.topic().getBytes(StandardCharsets.UTF_8);
        next = slice.start();
      }
      long size = Math.max(Math.min(count, (long) (REPLY_BYTES / recordBytes)), 1);
      int room = (int) Math.min(PULLS_IN_FLIGHT, BYTES_IN_FLIGHT / (size * recordBytes));
      if (pullCount >= Math.max(room, 1)) {
        return;
      }
      Pull pull = new Pull(slice, topic, next, Math.min(next + size, slice.stop()));
      next = pull.stop;
      if (first == null) {
        first = pull;
      } else {
        last.next = pull;
      }
      last = pull;
      ask(pull);
    }
  }

  private void ask(Pull pull) {
    pullCount++;
    lastOpaque++;
    asked.put(lastOpaque, pull);
    pull.askedNs = System.nanoTime();
    List<String> parts = pull.slice.header();
    connection.ask(
        parts.get(0) + lastOpaque + parts.get(1) + pull.start + parts.get(2) + pull.count()
            + parts.get(3));
  }

  /** Waits for bytes, and hands replies to their pulls. */
  private void receive(long resumedNs) throws IOException, NotPlain {
    // Time without a reader does not count: Spark may have been busy for long.
    long passedNs = System.nanoTime() - Math.max(first.askedNs, resumedNs);
    long leftMs = pulls.timeoutMs() - passedNs / 1_000_000;
    if (leftMs <= 0) {
      throw new IOException("no reply to a pull in " + pulls.timeoutMs() + " ms");
    }
    if (task != null && task.isInterrupted()) {
      throw new TaskKilledException("interrupted");
    }
    connection.await(Math.min(leftMs, WAIT_MS));
    connection.receive(arrived);
    for (PullConnection.Reply reply : arrived) {
      Pull pull = asked.remove(reply.opaque);
      if (pull == null) {
        throw new NotPlain("a reply to no pull");
      }
      take(pull, reply);
    }
    arrived.clear();
  }

  private void take(Pull pull, PullConnection.Reply reply) throws NotPlain {
    if (reply.code != SUCCESS || reply.nextOffset <= pull.start || reply.nextOffset > pull.stop) {
      throw new NotPlain(
          "code " + reply.code + ", to be continued at " + reply.nextOffset + ", in reply to a pull of "
              + pull.start + " to " + pull.stop);
    }
    pull.reply = reply;
    if (reply.nextOffset < pull.stop) { // brokers limit the bytes of a reply
      Pull rest = new Pull(pull.slice, pull.topic, reply.nextOffset, pull.stop);
      pull.stop = reply.nextOffset;
      count = (int) pull.count();
      rest.next = pull.next;
      pull.next = rest;
      last = last == pull ? rest : last;
      ask(rest);
    } else {
      count = Math.min(count + 1, countMax());
    }
    recordBytes += ((double) reply.size / pull.count() - recordBytes) / 8;
  }

  /** Adds the records of a reply, if they are all right. */
  private void take(Pull pull) throws NotPlain {
    PullConnection.Reply reply = pull.reply;
    int countBefore = records.count;
    ByteBuffer memory = reply.block.memory.duplicate();
    long end = reply.address + reply.size;
    long queueOffset = pull.start;
    String problem = null;
    for (long address = reply.address; address < end && problem == null; address += bounds.size) {
      problem = problemOf(pull, address, end, queueOffset++, memory, reply.block.address);
      if (problem == null && (bounds.sysFlag & hiddenFlags) == 0) {
        records.add(address, bounds);
      }
    }
    if (problem == null && queueOffset != pull.stop) {
      problem = "messages " + queueOffset + " to " + pull.stop + " are missing";
    }
    if (problem != null) {
      records.truncate(countBefore);
      throw new NotPlain(
          problem + ", in topic " + pull.slice.topic() + ", queue id " + pull.slice.queueId());
    }
    used.add(reply);
    readCount += pull.count();
  }

  private String problemOf(
      Pull pull, long address, long end, long queueOffset, ByteBuffer memory, long start) {
    if (!bounds.find(address, end - address)) {
      return "no whole record at queue offset " + queueOffset;
    }
    if (queueOffset >= pull.stop
        || Memory.longAt(address + Layout.QUEUE_OFFSET) != queueOffset
        || Memory.intAt(address + Layout.QUEUE_ID) != pull.slice.queueId()
        || !hasTopic(pull.topic)) {
      return "another message than that at queue offset " + queueOffset;
    }
    if ((bounds.sysFlag & Layout.INNER_BATCH) != 0) {
      return "a batch record at queue offset " + queueOffset;
    }
    return checkCrc ? checksums.mismatch(bounds, address, memory, start) : null;
  }

  private boolean hasTopic(byte[] topic) {
    if (bounds.topicLength != topic.length) {
      return false;
    }
    for (int i = 0; i < topic.length; i++) {
      if (Platform.getByte(null, bounds.topic + i) != topic[i]) {
        return false;
      }
    }
    return true;
  }

  /** Closes the connection; its memory stays, as Spark may hold texts that point into it. */
  @Override
  public void close() {
    if (connection != null) {
      connection.close();
    }
  }

  /** A pull of messages {@code start} to {@code stop} of a queue. */
  private static final class Pull {
    final Plan.Slice slice;
    final byte[] topic;
    final long start;
    long stop;
    long askedNs;
    PullConnection.Reply reply;
    Pull next;

    Pull(Plan.Slice slice, byte[] topic, long start, long stop) {
      this.slice = slice;
      this.topic = topic;
      this.start = start;
      this.stop = stop;
    }

    long count() {
      return stop - start;
    }
  }
}

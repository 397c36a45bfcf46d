package reput.accelerator;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import sun.nio.ch.DirectBuffer;

/**
 * A connection to a broker, with many pulls in flight. Replies stay in the memory that they were
 * read into, until they are released.
 */
final class PullConnection implements Closeable {
  private static final int CONNECT_TIMEOUT_MS = 3000;
  private static final int BLOCK_BYTES = 512 << 10;
  /** Least room of a read: more blocks would be used for less than this. */
  private static final int ROOM_BYTES = 64 << 10;
  /** Largest frame that a broker sends or accepts. */
  private static final int FRAME_BYTES_MAX = 16 << 20;
  private static final int IS_REPLY = 1;
  private static final JsonFactory JSON = new JsonFactory();

  private final SocketChannel channel;
  private final Selector selector;
  private final SelectionKey key;
  private ByteBuffer out = ByteBuffer.allocate(64 << 10);
  /** All memory, kept until the task ends: Spark may hold texts that point into it. */
  private final List<Block> blocks = new ArrayList<>();
  private final Deque<Block> idle = new ArrayDeque<>();
  private Block block = blockOf(BLOCK_BYTES);
  /** Position in the block of the first byte that is not part of a whole frame. */
  private int start;

  PullConnection(String address) throws IOException {
    int colon = address.lastIndexOf(':');
    InetSocketAddress broker =
        new InetSocketAddress(
            address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
    channel = SocketChannel.open();
    try {
      channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
      channel.socket().connect(broker, CONNECT_TIMEOUT_MS);
      channel.configureBlocking(false);
      selector = Selector.open();
      key = channel.register(selector, SelectionKey.OP_READ);
    } catch (IOException | RuntimeException error) {
      channel.close();
      throw error;
    }
  }

  /** Queues a frame with a JSON header, for {@code send}. */
  void ask(String header) {
    byte[] bytes = header.getBytes(StandardCharsets.UTF_8);
    if (out.remaining() < bytes.length + 8) {
      int needed = out.position() + bytes.length + 8;
      out = ByteBuffer.allocate(Math.max(2 * out.capacity(), needed)).put(out.flip());
    }
    out.putInt(bytes.length + 4).putInt(bytes.length).put(bytes);
  }

  /** Sends queued frames as far as the system accepts them. */
  void send() throws IOException {
    if (out.position() > 0) {
      channel.write(out.flip());
      out.compact();
      key.interestOps(
          SelectionKey.OP_READ | (out.position() > 0 ? SelectionKey.OP_WRITE : 0));
    }
  }

  /** Waits until bytes have arrived, or queued frames can be sent, and at most some ms. */
  void await(long timeoutMs) throws IOException {
    selector.select(timeoutMs);
    selector.selectedKeys().clear();
    send();
  }

  /**
   * Reads what has arrived, and adds the replies to a list, in the order of arrival.
   *
   * @throws NotPlain if they are of another encoding or protocol
   */
  void receive(List<Reply> replies) throws IOException, NotPlain {
    makeRoom();
    int read = channel.read(block.memory);
    if (read < 0) {
      throw new IOException("the broker closed the connection");
    }
    int end = block.memory.position();
    while (end - start >= 4) {
      int length = lengthOfFrame();
      if (end - start - 4 < length) {
        break;
      }
      Reply reply = replyOf(block.address + start + 4, length);
      if (reply != null) {
        block.useCount++;
        replies.add(reply);
      }
      start += 4 + length;
    }
  }

  private int lengthOfFrame() throws NotPlain {
    int length = Memory.intAt(block.address + start);
    if (length < 4 || length > FRAME_BYTES_MAX) {
      throw new NotPlain("a frame of " + length + " bytes");
    }
    return length;
  }

  /** Lets memory be used again, when no reply is left in it. */
  void release(Reply reply) {
    Block used = reply.block;
    if (--used.useCount == 0 && used != block) {
      idle.push(used);
    }
  }

  /** Provides room for the rest of the frame that begins at {@code start}. */
  private void makeRoom() throws NotPlain {
    int end = block.memory.position();
    if (start == end && block.useCount == 0) {
      block.memory.clear();
      start = 0;
      return;
    }
    int needed = end - start < 4 ? ROOM_BYTES : Math.max(4 + lengthOfFrame(), ROOM_BYTES);
    if (block.memory.capacity() - start >= needed) {
      return;
    }
    Block full = block;
    block = idleBlockOf(needed);
    block.memory.clear();
    block.memory.put(full.memory.duplicate().limit(end).position(start));
    start = 0;
    if (full.useCount == 0) {
      idle.push(full);
    }
  }

  private Block idleBlockOf(int size) {
    while (!idle.isEmpty() && idle.peek().memory.capacity() < size) {
      idle.pop(); // replaced by a larger one
    }
    return idle.isEmpty() ? blockOf(Math.max(size, BLOCK_BYTES)) : idle.pop();
  }

  private Block blockOf(int size) {
    Block made = new Block(ByteBuffer.allocateDirect(size));
    blocks.add(made);
    return made;
  }

  /** Returns the reply in a frame without its length; null if a broker asks something. */
  private Reply replyOf(long address, int length) throws IOException, NotPlain {
    int headerBytes = Memory.intAt(address);
    if (headerBytes < 0 || headerBytes > Math.min(length - 4, (1 << 24) - 1)) {
      throw new NotPlain("a header that is not JSON");
    }
    Reply reply = new Reply(block, address + 4 + headerBytes, length - 4 - headerBytes);
    byte[] header = Memory.bytesAt(address + 4, headerBytes);
    try (JsonParser parser = JSON.createParser(header)) {
      if (parser.nextToken() != JsonToken.START_OBJECT) {
        throw new NotPlain("a header that is not JSON");
      }
      boolean isReply = false;
      for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
        JsonToken value = parser.nextToken();
        switch (name) {
          case "code" -> reply.code = parser.getIntValue();
          case "opaque" -> reply.opaque = parser.getIntValue();
          case "flag" -> isReply = (parser.getIntValue() & IS_REPLY) != 0;
          case "extFields" -> {
            if (value == JsonToken.START_OBJECT) {
              readFields(parser, reply);
            }
          }
          default -> parser.skipChildren();
        }
      }
      return isReply ? reply : null;
    }
  }

  private static void readFields(JsonParser parser, Reply reply) throws IOException {
    for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
      parser.nextToken();
      if (name.equals("nextBeginOffset")) {
        reply.nextOffset = parser.getValueAsLong(-1);
      } else {
        parser.skipChildren();
      }
    }
  }

  @Override
  public void close() {
    try (channel) {
      selector.close();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Memory that replies are read into. */
  static final class Block {
    final ByteBuffer memory;
    final long address;
    /** Number of replies in it that are in use. */
    private int useCount;

    Block(ByteBuffer memory) {
      this.memory = memory;
      address = ((DirectBuffer) memory).address();
    }
  }

  /** A reply. Its records are between two addresses. */
  static final class Reply {
    final Block block;
    final long address;
    final int size;
    int code = -1;
    int opaque = -1;
    long nextOffset = -1;

    Reply(Block block, long address, int size) {
      this.block = block;
      this.address = address;
      this.size = size;
    }
  }
}
